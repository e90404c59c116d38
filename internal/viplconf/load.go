package viplconf

import (
	"errors"
	"fmt"
	"os"
)

// Load reads the configuration in file; "" means DefaultFile. If DefaultFile does not exist, the
// configuration is empty.
func Load(file string) (*Config, error) {
	name := file
	if name == "" {
		name = DefaultFile
	}
	text, err := os.ReadFile(name)
	if err != nil && (file != "" || !errors.Is(err, os.ErrNotExist)) {
		return nil, err
	}
	c, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}
