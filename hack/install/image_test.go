// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Building the image needs a registry, so this test only checks the text of the Dockerfile, for example that every copied folder exists.
func TestDockerfile_NamesExistingFiles(t *testing.T) {
	recipe, ignored := readFile(t, "Dockerfile"), readFile(t, ".dockerignore")
	copied := regexp.MustCompile(`(?m)^COPY ([a-z]+) ([a-z]+)$`).FindAllStringSubmatch(recipe, -1)
	if len(copied) < 5 {
		t.Fatalf("copies %v", copied)
	}
	var folders []string
	for _, match := range copied {
		folders = append(folders, match[1])
		if _, err := os.Stat(filepath.Join(root, match[1])); err != nil {
			t.Error(err)
		}
		if !strings.Contains(ignored, "\n!"+match[1]+"\n") {
			t.Errorf(".dockerignore excludes %s", match[1])
		}
	}
	// The copied folders must contain all packages of the programs.
	programs := regexp.MustCompile(`\./cmd/[a-z-]+`).FindAllString(recipe, -1)
	if len(programs) != 4 {
		t.Errorf("builds %v", programs)
	}
	command := exec.Command("go", append([]string{"list", "-deps", "-f", "{{if .Module}}{{if .Module.Main}}{{.ImportPath}}{{end}}{{end}}"}, programs...)...)
	command.Dir = root
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.Fields(string(out)) {
		folder, _, _ := strings.Cut(strings.TrimPrefix(path, "github.com/berth-dev/berth/"), "/")
		if !slices.Contains(folders, folder) {
			t.Errorf("%s is needed, but %s is not copied", path, folder)
		}
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(readFile(t, "go.mod"))
	if version == nil || !strings.Contains(recipe, "golang:"+version[1]+" ") {
		t.Errorf("the image is not built with Go %v", version)
	}
	for _, arg := range []string{"TARGETOS", "TARGETARCH"} {
		if !strings.Contains(recipe, "ARG "+arg+"\n") || !strings.Contains(recipe, "$"+arg) {
			t.Errorf("%s is not used", arg)
		}
	}
}

// All files agree on the user, the version and the name of the image.
func TestImage_IsConsistentAcrossFiles(t *testing.T) {
	manager := renderKustomization(t, "config/default").Get("Deployment", "berth-manager")
	user := manager.At("spec", "template", "spec", "securityContext", "runAsUser")
	if !strings.Contains(readFile(t, "Dockerfile"), fmt.Sprintf("USER %v:", user)) {
		t.Errorf("the Deployment runs the image as user %v, but the Dockerfile does not", user)
	}
	read, err := LoadChart(root)
	if err != nil {
		t.Fatal(err)
	}
	if read.Metadata.Version != read.Metadata.AppVersion {
		t.Errorf("chart %s installs %s", read.Metadata.Version, read.Metadata.AppVersion)
	}
	expectImage(repository+":"+read.Metadata.AppVersion)(t, renderKustomization(t, "config/default"))
}

func TestKo_BuildsExistingProgramsForARM64(t *testing.T) {
	ko := Object{}
	if err := yaml.Unmarshal([]byte(readFile(t, ".ko.yaml")), &ko); err != nil {
		t.Fatal(err)
	}
	for _, build := range objectList(ko.At("builds")) {
		if _, err := os.Stat(filepath.Join(root, fmt.Sprint(build.At("main")), "main.go")); err != nil {
			t.Error(err)
		}
	}
	if !slices.Contains(ko.At("defaultPlatforms").([]any), any("linux/arm64")) {
		t.Error("no image for arm64")
	}
}
