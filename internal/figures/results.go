// Package figures stores the measured figures in one file, results.json. From this file it makes
// the tables and the pictures of docs/performance.md. A test compares the documents with the file.
//
// The plots of viaduct bench are charts of this package too: see [Page].
package figures

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// The files below the root of the repository.
const (
	resultsFile  = "internal/figures/results.json"
	page         = "docs/performance.md"
	pictureFiles = "docs/performance"
)

// Results are all figures the documents show.
type Results struct {
	Peers    Table   `json:"peers"`    // made by bench/peers.sh
	Run      Table   `json:"run"`      // made by bench/run.sh
	Pictures []Chart `json:"pictures"` // made by bench/peers.sh
}

// Read returns the results of the repository at root. They are empty if there is no file yet.
func Read(root string) (*Results, error) {
	r := new(Results)
	b, err := os.ReadFile(filepath.Join(root, resultsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	return r, json.Unmarshal(b, r)
}

// Write stores the results below root, and updates the tables and pictures there.
func (r *Results) Write(root string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(root, filepath.Dir(resultsFile)), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, resultsFile), append(b, '\n'), 0o644); err != nil {
		return err
	}
	files, err := r.documents(root)
	if err != nil {
		return err
	}
	for name, text := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// documents returns the contents of the files that show figures, by name.
func (r *Results) documents(root string) (map[string][]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return nil, err
	}
	expected, err := r.expected()
	if err != nil {
		return nil, err
	}
	for _, block := range []struct{ begins, text string }{
		{expectedBegins, expected}, {peersBegins, r.Peers.Markdown()}, {runBegins, r.Run.Markdown()},
	} {
		if text, err = replace(text, block.begins, block.text); err != nil {
			return nil, err
		}
	}
	files := map[string][]byte{page: text}
	for _, c := range r.Pictures {
		files[filepath.ToSlash(filepath.Join(pictureFiles, c.File))] = c.svg()
	}
	return files, nil
}
