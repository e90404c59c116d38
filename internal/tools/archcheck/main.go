package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

func main() {
	offences, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "archcheck:", err)
		os.Exit(1)
	}
	for _, o := range offences {
		fmt.Println(o)
	}
	if len(offences) > 0 {
		os.Exit(1)
	}
}

func run() ([]string, error) {
	module, err := exec.Command("go", "list", "-m").Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m: %w", explain(err))
	}
	var all []pkg
	for _, goos := range []string{"linux", "darwin", "windows"} {
		pkgs, err := list(goos)
		if err != nil {
			return nil, err
		}
		all = append(all, pkgs...)
	}
	return check(strings.TrimSpace(string(module)), all), nil
}

// list returns the packages of the module printed by go list for a system.
func list(goos string) ([]pkg, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list for %s: %w", goos, explain(err))
	}
	var pkgs []pkg
	d := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list for %s: %w", goos, err)
		}
		pkgs = append(pkgs, p)
	}
}

// explain adds the standard error of a failed command to the error.
func explain(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
