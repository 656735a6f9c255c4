// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command picture reads the text of a terminal from standard input and writes it as an SVG image. Lines that begin with "$ " are commands.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/clipperhouse/displaywidth"
)

// The sizes of a character cell and of the margin, in pixels of the image.
const (
	cellWidth  = 8.4
	cellHeight = 20
	margin     = 16
)

var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", " ", "\u00a0") // browsers collapse other spaces

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run() error {
	var lines []string
	columns := 0
	for scanner := bufio.NewScanner(os.Stdin); scanner.Scan(); {
		line := strings.TrimRight(scanner.Text(), " ")
		if !utf8.ValidString(line) {
			return fmt.Errorf("line %d is not UTF-8", len(lines)+1)
		}
		lines, columns = append(lines, line), max(columns, displaywidth.String(line))
	}
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	if len(lines) == 0 {
		return fmt.Errorf("standard input is empty")
	}
	width, height := int(float64(columns)*cellWidth)+2*margin, len(lines)*cellHeight+2*margin
	fmt.Printf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">`+"\n", width, height)
	fmt.Printf(`<rect width="100%%" height="100%%" rx="8" fill="#16181d"/>` + "\n")
	fmt.Printf(`<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14" fill="#d7dae0">` + "\n")
	for i, line := range lines {
		color := ""
		if strings.HasPrefix(line, "$ ") {
			color = ` fill="#8fd19e"`
		}
		fmt.Printf(`<text x="%d" y="%d"%s>%s</text>`+"\n", margin, margin+i*cellHeight+15, color, escape.Replace(line))
	}
	fmt.Println("</g>\n</svg>")
	return nil
}
