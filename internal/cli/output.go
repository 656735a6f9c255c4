// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/printable"
)

// outputFormat is the flag -o of a command that prints objects. Its values have the same meaning as those of kubectl. Empty means a table.
type outputFormat struct {
	text string
	// wide permits the value wide, which adds columns to the table.
	wide bool
}

func (o *outputFormat) add(command *cobra.Command) {
	values := "json, yaml, name or jsonpath=TEMPLATE"
	if o.wide {
		values = "wide, " + values
	}
	command.Flags().StringVarP(&o.text, "output", "o", "", "output format: "+values)
}

// table reports whether the command prints a table or another text, not objects.
func (o *outputFormat) table() bool { return o.text == "" || o.wide && o.text == "wide" }

// printer returns the printer of cli-runtime for the format. It returns an error if the value of the flag is invalid.
func (o *outputFormat) printer(command *cobra.Command) (printers.ResourcePrinter, error) {
	name, template, _ := strings.Cut(o.text, "=")
	switch {
	case o.table():
		return nil, nil //nolint:nilnil // a table needs no printer
	case o.text == "json":
		return &printers.OmitManagedFieldsPrinter{Delegate: &printers.JSONPrinter{}}, nil
	case o.text == "yaml":
		return &printers.OmitManagedFieldsPrinter{Delegate: &printers.YAMLPrinter{}}, nil
	case o.text == "name":
		return &printers.NamePrinter{}, nil
	case name == "jsonpath" && template != "":
		printer, err := printers.NewJSONPathPrinter(template)
		if err != nil {
			return nil, &usageError{fmt.Errorf("-o %s: %w", o.text, err), command.UsageString()}
		}
		return printer, nil
	}
	return nil, &usageError{fmt.Errorf("-o %q is not supported: use json, yaml, name or jsonpath=TEMPLATE", o.text), command.UsageString()}
}

// createdPrinter is printer for a command that creates an object and prints it before it waits for anything.
func (o *outputFormat) createdPrinter(command *cobra.Command, wait bool) (printers.ResourcePrinter, error) {
	if wait && !o.table() {
		return nil, &usageError{errors.New("-o prints the new object and does not wait: omit -o or --wait"), command.UsageString()}
	}
	return o.printer(command)
}

// printObjects prints one object if single is set, otherwise all objects as one v1 List. Names are printed one by one.
func printObjects(to printers.ResourcePrinter, out io.Writer, objects []client.Object, single bool) error {
	_, names := to.(*printers.NamePrinter)
	list := &corev1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	for _, object := range objects {
		kind, err := apiutil.GVKForObject(object, manager.Scheme())
		if err != nil {
			return fmt.Errorf("print %s: %w", object.GetName(), err)
		}
		object.GetObjectKind().SetGroupVersionKind(kind) // a typed read leaves it empty
		if single || names {
			if err := to.PrintObj(object, out); err != nil {
				return fmt.Errorf("print %s: %w", object.GetName(), err)
			}
			continue
		}
		object.SetManagedFields(nil) // OmitManagedFieldsPrinter does not look into lists of raw objects
		list.Items = append(list.Items, runtime.RawExtension{Object: object})
	}
	if single || names {
		return nil
	}
	return to.PrintObj(list, out)
}

// printValue prints a value that is not an object of the API, such as the version.
func (a *app) printValue(format string, value any) error {
	data, err := yaml.Marshal(value)
	if err == nil && format == "json" {
		data, err = yaml.YAMLToJSON(data)
		data = append(data, '\n')
	}
	if err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	_, err = a.out.Write(data)
	return err
}

// plainWriter writes text without the sequences that control a terminal. All readable output of the commands goes through a plainWriter, because names,
// messages and errors may contain text that an object, a process or a server chose. Output that a terminal or a protocol needs unchanged goes to app.raw.
type plainWriter struct{ to io.Writer }

// Write implements io.Writer. Each call must contain whole characters.
func (w *plainWriter) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.to, printable.Text(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// clean makes a value printable within one line. The value therefore cannot start a line that looks like output of Berth.
func clean(text string) string { return printable.Line(text) }
