//go:build linux && (amd64 || arm64)

package main

import (
	_ "embed"
	"strings"
)

//go:embed testdata/ring.c
var ringProgram string

// openMPI is Open MPI's command for running a program over UCX.
const openMPI = "mpirun.openmpi --oversubscribe --mca pml ucx --mca osc ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any"

// mpis returns trials of a single program with two and four ranks. The program passes messages in a
// ring, all to all, and by one-sided operations, and compares the results.
func mpis() (all []trial) {
	// Open MPI destroys the endpoints of one-sided operations without waiting for the other ranks.
	// A datagram endpoint to an ended rank is an error for UCX, so the trial over datagrams
	// exchanges messages only.
	for _, m := range []struct{ name, cc, run, ud string }{
		{"Open MPI", "mpicc.openmpi", openMPI, "messages"},
		{"MPICH", "mpicc.mpich", "mpirun.mpich", ""},
	} {
		for _, c := range []struct {
			ranks, tls string
			long       bool
		}{{"2", "rc,self", false}, {"4", "rc,self", false}, {"2", "ud,self", true}, {"4", "ud,self", false}} {
			arg := ""
			if strings.HasPrefix(c.tls, "ud") {
				arg = " " + m.ud
			}
			all = append(all, trial{
				name: m.name + " " + c.ranks + " ranks " + c.tls, needs: []string{m.cc},
				script: "cat >ring.c <<'END'\n" + ringProgram + "END\n" + m.cc + " -o ring ring.c && UCX_TLS=" + c.tls + " " + m.run + " -n " + c.ranks + " ./ring" + arg,
				says:   []string{"all results are right"}, slow: true, long: c.long,
			})
		}
	}
	return all
}
