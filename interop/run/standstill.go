//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A process is a process found in /proc.
type process struct {
	pid, parent int
	name        string // name of its program
}

func processes() (all []process) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range files {
		b, err := os.ReadFile(f)
		head, rest, ok := strings.Cut(string(b), " (")
		if err != nil || !ok {
			continue
		}
		i := strings.LastIndex(rest, ") ")
		var p process
		var state string
		if p.pid, err = strconv.Atoi(head); err != nil || i < 0 {
			continue
		}
		if _, err := fmt.Sscan(rest[i+2:], &state, &p.parent); err == nil {
			p.name = rest[:i]
			all = append(all, p)
		}
	}
	return all
}

// below returns the process root and all descendants.
func below(root int) (found []process) {
	all, in := processes(), map[int]bool{root: true}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if in[p.parent] && !in[p.pid] {
				in[p.pid], grown = true, true
			}
		}
	}
	for _, p := range all {
		if in[p.pid] {
			found = append(found, p)
		}
	}
	return found
}

// standstill describes what the processes of a hanging trial wait for. It makes viaduct's processes
// print their goroutines to standard error and end.
func standstill(roots ...int) string {
	var out bytes.Buffer
	if b, err := exec.Command("ss", "-tanp").CombinedOutput(); err == nil {
		out.Write(b)
	}
	var ours []int
	for _, root := range roots {
		for _, p := range below(root) {
			fmt.Fprintf(&out, "process %d of %d: %s\n", p.pid, p.parent, p.name)
			if p.name == "viaduct" {
				ours = append(ours, p.pid)
				continue
			}
			for _, f := range []string{"wchan", "syscall", "stack"} {
				b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.pid, f))
				fmt.Fprintf(&out, "%s: %s\n", f, bytes.TrimSpace(b))
			}
		}
	}
	for _, pid := range ours {
		syscall.Kill(pid, syscall.SIGSYS) // SIGSYS, because run does not forward this signal to the program
	}
	time.Sleep(time.Second)
	return out.String()
}
