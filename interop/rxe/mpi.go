//go:build linux && (amd64 || arm64)

package main

import (
	_ "embed"
	"strings"
)

//go:embed testdata/ring.c
var ringProgram string

// openMPI runs a program by UCX.
const openMPI = "mpirun.openmpi --oversubscribe --mca pml ucx --mca osc ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any"

// mpis run one program over two and four ranks: a ring, all to all and one-sided operations, whose results it compares.
func mpis() (all []trial) {
	// Open MPI destroys the endpoints of one-sided operations without waiting for the other ranks.
	// One of datagrams to a rank that has ended is an error to UCX, so there only messages are
	// exchanged.
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
