//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// The directory of our own programs, and a header included by the programs.
const (
	cSource  = "interop/rdma/c"
	cHeaders = "/usr/include/rdma/rdma_cma.h" // from librdmacm-dev, which depends on libibverbs-dev
)

// buildC compiles our own programs, if the compiler and the headers are installed.
func (l *lab) buildC(ctx context.Context) error {
	if find("cc") == "" || find(cHeaders) == "" {
		return nil // the trials are then skipped
	}
	for _, name := range []string{"cm_errors", "verbs_errors", "crowd", "pairs"} {
		c := exec.CommandContext(ctx, "cc", "-Wall", "-Wextra", "-O1", "-o", filepath.Join(l.dir, name),
			name+".c", "check.c", "end.c", "-lrdmacm", "-libverbs")
		c.Dir = cSource
		if b, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s.c: %w\n%s", name, err, b)
		}
	}
	return nil
}

// ownPrograms returns the trials of our own programs. Under one supervisor both ends use a link
// within the supervisor, under two supervisors shared memory; with --tcp the ends use TCP in both
// cases.
func ownPrograms() []trial {
	needs := []string{"cc", cHeaders}
	alone := func(name string, flags ...string) trial {
		return trial{name: "c/" + name, needs: needs, flags: flags, says: ", 0 failed", alone: []string{"./" + name}}
	}
	pairs := func(flags ...string) trial {
		return trial{name: "c/pairs", needs: needs, flags: flags, says: ", 0 failed",
			pair: func(_ *lab, port string) (server, client []string) {
				return []string{"./pairs", "serve", port}, []string{"./pairs", "call", port}
			}}
	}
	all := []trial{alone("cm_errors"), alone("verbs_errors"), alone("crowd"), alone("crowd", "--tcp"), pairs(), pairs("--tcp").without(one)}
	for i := range all {
		for _, f := range all[i].flags {
			all[i].name += " " + f
		}
	}
	return all
}
