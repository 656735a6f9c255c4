// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/notify"
	"github.com/berth-dev/berth/internal/statedir"
)

const (
	// notifyPoll is how often berth notify reads which objects wait.
	notifyPoll = 2 * time.Second
	// maxWebhookFile is the maximum size of the file of --webhook-file, in bytes.
	maxWebhookFile = 4 << 10
	// notifyPrefix begins the names of the flags of berth up that berth notify has without it.
	notifyPrefix = "notify-"
)

// notifyFlags are the flags that berth notify and berth up share.
type notifyFlags struct {
	desktop, terminal, includeText        bool
	command                               []string
	webhook, webhookFile, template, quiet string
	after                                 time.Duration
}

// addTo adds the flags. prefix begins their names.
func (n *notifyFlags) addTo(flags *pflag.FlagSet, prefix string) {
	flags.BoolVar(&n.desktop, prefix+"desktop", false, "notify on the desktop, over the D-Bus session bus; default: if there is a bus and no other way is selected")
	flags.BoolVar(&n.terminal, prefix+"terminal", false, "notify through this terminal (OSC 9 or 777); default: if there is no bus and no other way is selected")
	flags.StringArrayVar(&n.command, prefix+"command", nil, "program to run for each notification, without a shell; repeat the flag for its arguments")
	flags.StringVar(&n.webhook, prefix+"webhook", "", "https URL (or http URL of a loopback address) for POST requests; other users of this machine can see it, so use --"+prefix+"webhook-file for a secret URL")
	flags.StringVar(&n.webhookFile, prefix+"webhook-file", "", "file with the URL of the webhook, which only you may access")
	flags.StringVar(&n.template, prefix+"webhook-template", "", `template (Go text/template) for the body of a request, such as {"text": {{json .Title}}}; default: JSON with id, title, body and questions`)
	flags.BoolVar(&n.includeText, prefix+"include-text", false, "also send the description of a question to the command and the webhook; default: only namespace, kind, name, reason and time")
	flags.StringVar(&n.quiet, prefix+"quiet", "", "local time of day without notifications, such as 22:00-07:00; what still waits is sent afterwards")
	flags.DurationVar(&n.after, prefix+"after", 0, "notify only of what has waited for this time")
}

// errNoChannel is the cause of an error of notifier if no flag selects a way, and this machine has none.
var errNoChannel = errors.New("no way to notify you")

func (a *app) notifyCommand() *cobra.Command {
	selected, flags := &selection{}, &notifyFlags{}
	var allNamespaces bool
	command := &cobra.Command{
		Use:   "notify",
		Short: "Notify you when an object begins to wait for you",
		Long: "Notify watches until Ctrl-C, and sends one notification for each question of an Instance and each Plan that begins to wait for approval: on the desktop,\n" +
			"through the terminal, with a command or by a webhook. Several that begin at about the same time are one notification. A restart of the command\n" +
			"repeats none. Commands and webhooks get no description of the question unless you set --include-text; no notification contains text of a screen.\n" +
			"berth up --notify does the same in the process of berth up.",
		Example: "  # On the desktop, or else through this terminal\n" +
			"  berth notify -A\n\n" +
			"  # With a program, but not at night\n" +
			"  berth notify --command ~/bin/tell-me --quiet 22:00-07:00\n\n" +
			"  # To a chat, with a URL that no process list shows\n" +
			"  berth notify --webhook-file ~/.config/berth/webhook --webhook-template '{\"text\": {{json .Title}}}'",
		Args: needs(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			selected.allNamespaces = allNamespaces
			return a.notify(command.Context(), selected, flags)
		},
	}
	selected.connectionFlags.add(command)
	selected.addLabels(command)
	command.Flags().BoolVarP(&allNamespaces, "all-namespaces", "A", false, "watch all namespaces")
	flags.addTo(command.Flags(), "")
	return command
}

func (a *app) notify(ctx context.Context, selected *selection, flags *notifyFlags) (err error) {
	a, flush := a.inBackground() // a stopped terminal must not keep this command from ending, nor the other ways from being used
	defer flush()
	opts, err := selected.option()
	if err != nil {
		return err
	}
	notifier, err := a.notifier(flags, "")
	if err != nil {
		return err
	}
	notifier.Report = func(format string, args ...any) { a.say(a.clock.Now().Format(time.TimeOnly)+" "+format, args...) }
	to, err := a.connect(&selected.connectionFlags)
	if err != nil {
		return err
	}
	if selected.allNamespaces {
		to.namespace = ""
	}
	if notifier.Memory, err = notify.OpenMemory(defaultStateDir(), append(destinations(notifier), to.config.Host, to.namespace, selected.labels)...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, notifier.Memory.Close()) }()
	a.say("notifying by %s", strings.Join(channelNames(notifier), ", "))
	var found []client.Object
	read := func() (err error) {
		found, err = to.objects(ctx, waitingKinds, append(slices.Clone(opts), fromCache)...)
		return err
	}
	return a.follow(ctx, notifyPoll, nil, read, func() (bool, error) {
		notifier.Update(ctx, questionsOf(found), a.clock.Now())
		return false, nil
	})
}

// notifier returns a notifier for the flags, whose names begin with prefix. Without flags it uses the desktop or, without a session bus, the terminal.
func (a *app) notifier(flags *notifyFlags, prefix string) (*notify.Notifier, error) {
	quiet, err := notify.ParseQuiet(flags.quiet)
	if err != nil {
		return nil, fmt.Errorf("--%squiet: %w", prefix, err)
	}
	n := &notify.Notifier{Quiet: quiet, After: flags.after}
	if len(flags.command) > 0 {
		n.Channels = append(n.Channels, notify.Channel{Sender: &notify.Command{Argv: flags.command}, Text: flags.includeText})
	}
	webhook, err := flags.newWebhook(prefix)
	if err != nil {
		return nil, err
	}
	if webhook != nil {
		n.Channels = append(n.Channels, notify.Channel{Sender: webhook, Text: flags.includeText})
	}
	for _, sender := range a.localSenders(flags, len(n.Channels) == 0) {
		n.Channels = append(n.Channels, notify.Channel{Sender: sender, Text: true})
	}
	if len(n.Channels) == 0 {
		return nil, fmt.Errorf("%[2]w: set --%[1]scommand or --%[1]swebhook-file, or run this command in a terminal or a desktop session", prefix, errNoChannel)
	}
	return n, nil
}

// localSenders returns the desktop and the terminal, as far as the flags select them and this machine has them. If no flag selects one, and fallback is set, it
// returns the desktop or, without a session bus, the terminal.
func (a *app) localSenders(flags *notifyFlags, fallback bool) (senders []notify.Sender) {
	fallback = fallback && !flags.desktop && !flags.terminal
	if flags.desktop || fallback {
		desktop, err := notify.NewDesktop(os.Getenv)
		switch {
		case err == nil:
			senders, fallback = append(senders, desktop), false
		case flags.desktop || !a.atTerminal():
			a.say("cannot notify on the desktop: %v", err)
		}
	}
	switch {
	case !flags.terminal && !fallback:
	case a.atTerminal():
		senders = append(senders, notify.NewTerminal(a.raw, os.Getenv))
	default:
		a.say("cannot notify through the terminal: standard output is not a terminal")
	}
	return senders
}

// atTerminal reports whether standard output is a terminal.
func (a *app) atTerminal() bool { return findWindow(nil, a.raw).out >= 0 }

// newWebhook returns the webhook of the flags, or nil if there is none.
func (n *notifyFlags) newWebhook(prefix string) (*notify.Webhook, error) {
	address := n.webhook
	switch {
	case n.webhook != "" && n.webhookFile != "":
		return nil, fmt.Errorf("use either --%[1]swebhook or --%[1]swebhook-file", prefix)
	case n.webhookFile != "":
		text, err := statedir.ReadPrivate(n.webhookFile, maxWebhookFile)
		if err != nil {
			return nil, fmt.Errorf("--%swebhook-file: %w", prefix, err)
		}
		address = strings.TrimSpace(string(text))
	case n.webhook == "" && n.template != "":
		return nil, fmt.Errorf("--%[1]swebhook-template needs --%[1]swebhook or --%[1]swebhook-file", prefix)
	case n.webhook == "":
		return nil, nil //nolint:nilnil // as documented
	}
	return notify.NewWebhook(address, n.template)
}

func channelNames(n *notify.Notifier) (names []string) {
	for _, channel := range n.Channels {
		names = append(names, channel.String())
	}
	return names
}

func destinations(n *notify.Notifier) (names []string) {
	for _, channel := range n.Channels {
		names = append(names, channel.Destination())
	}
	return names
}

// questionsOf returns what the objects wait for, the longest wait first.
func questionsOf(objects []client.Object) []notify.Question {
	var questions []notify.Question
	for _, w := range waitersOf(objects) {
		questions = append(questions, notify.Question{
			ID: w.id, Namespace: w.Namespace, Name: w.Name, Reason: w.Reason, Since: w.Since.Time, Text: w.Message,
		})
	}
	return questions
}

// questionID returns the same ID for the same question of an object, whichever program reads it. An object can wait twice within the second that since has: then
// an Instance has another status.agent.since, and a Plan another phase or attempt.
func questionID(object client.Object, since time.Time) string {
	id := fmt.Sprintf("%s %d", object.GetUID(), since.Unix())
	switch object := object.(type) {
	case *v1alpha1.Instance:
		id += fmt.Sprintf(" %d", object.Status.Incarnation)
		if agent := object.Status.Agent; agent != nil && agent.State == v1alpha1.AgentWaiting && agent.Since != nil {
			id += fmt.Sprintf(" %d", agent.Since.UnixMicro())
		}
	case *v1alpha1.Plan:
		id += fmt.Sprintf(" %s %d", object.Status.CurrentPhase, object.Status.Attempt)
	}
	return id
}

// notifyBeside sends notifications about the objects in the cache of the manager of berth up until the context is done. It writes to the log of the manager, because
// lines between those of the table would disturb it.
func (a *app) notifyBeside(ctx context.Context, mgr *assembled, f *upFlags, notifier *notify.Notifier) {
	notifier.Report = func(format string, args ...any) { f.log.Info("Notifications: " + fmt.Sprintf(format, args...)) }
	memory, err := notify.OpenMemory(f.stateDir, destinations(notifier)...)
	if err != nil {
		notifier.Report("cannot record which questions were sent, so they are sent again after a restart: %v", err)
	} else {
		notifier.Memory = memory
		defer func() { _ = memory.Close() }() // the lock ends with the process, too
	}
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return
	}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		var found []client.Object
		for _, of := range waitingKinds {
			some, err := listKind(ctx, mgr.GetClient(), of.kind, "", false)
			if err != nil {
				return // the cache has stopped
			}
			found = append(found, some...)
		}
		notifier.Update(ctx, questionsOf(found), a.clock.Now())
	}, notifyPoll)
}
