// Package wireshark holds dissectors for Wireshark, in Lua: VI/TCP, SDP over iWARP, SDP's Port
// Mapper, FC-VI.
package wireshark

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

//go:embed viaduct_*.lua
var files embed.FS

// Names returns the names of the files.
func Names() []string {
	list, _ := files.ReadDir(".") // which can't fail
	var names []string
	for _, f := range list {
		names = append(names, f.Name())
	}
	slices.Sort(names)
	return names
}

// File returns the text of a file.
func File(name string) ([]byte, error) { return files.ReadFile(name) }

// Folder returns the directory of the user's Lua plugins for Wireshark.
func Folder() (string, error) {
	if dir := os.Getenv("APPDATA"); dir != "" { // Windows
		return filepath.Join(dir, "Wireshark", "plugins"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("wireshark: where its plugins belong is not known: %w", err)
	}
	return filepath.Join(home, ".local", "lib", "wireshark", "plugins"), nil
}

// Install writes the files into dir, creates dir if needed, and returns the paths of the files.
func Install(dir string) (paths []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, name := range Names() {
		b, err := File(name)
		if err != nil {
			return nil, err
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o644); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}
