package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// storagePage is the page of the guide on disks and file systems.
const storagePage = "docs/guide/storage.md"

// A guide holds the commands of storagePage. Host and guest run the commands unchanged.
type guide []string

func readGuide(ctx context.Context) (guide, error) {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "viaduct").Output()
	if err != nil {
		return nil, fmt.Errorf("looking for %s: %w", storagePage, err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), storagePage))
	var g guide
	for line := range strings.Lines(string(text)) {
		if commands, ok := strings.CutPrefix(line, "    "); ok {
			g = append(g, strings.Split(strings.TrimSpace(commands), " && ")...)
		}
	}
	return g, err
}

// command returns the command with the given beginning. put has pairs of a word of the page and a
// replacement for the run, such as a port. Without such a command the result is a failing command.
func (g guide) command(beginning string, put ...string) string {
	for _, c := range g {
		if strings.HasPrefix(c, beginning) {
			return strings.NewReplacer(put...).Replace(c)
		}
	}
	return fmt.Sprintf("echo '%s has no command %s'; exit 1", storagePage, beginning)
}
