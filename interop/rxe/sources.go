//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// sources are directories of programs not packaged by Debian. The trials of an empty directory name
// are skipped.
type sources struct {
	rdmaCore string // a build of rdma-core, with bin and lib
	valkey   string // source of valkey, built with "make BUILD_RDMA=module" and "make -C tests/rdma"
	mpi4py   string // source of mpi4py, in the version that is installed
}

// path returns the list of directories searched for programs, in the form of PATH.
func (s sources) path() string {
	if s.rdmaCore == "" {
		return os.Getenv("PATH")
	}
	return filepath.Join(s.rdmaCore, "bin") + ":" + os.Getenv("PATH")
}

// env returns the environment for using the libraries of the rdma-core build in all programs, or
// nil without a build.
func (s sources) env() []string {
	if s.rdmaCore == "" {
		return nil
	}
	return []string{"LD_LIBRARY_PATH=" + filepath.Join(s.rdmaCore, "lib")}
}

// trials returns the trials of the programs in s.
func (s sources) trials() (all []trial) {
	all = append(all, trial{name: "valkey", needs: []string{orFlag(s.valkey, "valkey", "tests/rdma/rdma-test")}, script: valkeyScript(s.valkey), slow: true,
		says: []string{"Valkey Over RDMA"}})
	// test_win is left out: Open MPI 4.1.4 with UCX 1.13.1 ends in a segmentation fault in MPI_Win_free
	// of a dynamic window (ucp_mem_unmap), by UCX's own TCP as well.
	for _, ranks := range []string{"1", "2", "4"} {
		all = append(all, trial{
			name: "mpi4py " + ranks + " ranks", needs: []string{orFlag(s.mpi4py, "mpi4py", "test/runtests.py"), "mpirun.openmpi"},
			script: "UCX_TLS=rc,self " + openMPI + " -n " + ranks + " /usr/bin/python3 " + filepath.Join(s.mpi4py, "test/runtests.py") + " --no-builddir -e spawn -e dynproc -e test_win",
			judge:  judgeMPI4Py, slow: true, long: ranks != "2",
		})
	}
	return all
}

// orFlag returns the path of file in dir. If dir is "", orFlag returns the flag for setting dir,
// and the flag is then reported as missing.
func orFlag(dir, flag, file string) string {
	if dir == "" {
		return "-" + flag + " DIR"
	}
	return filepath.Join(dir, file)
}

// valkeyScript returns a script that runs valkey's own test against a valkey server. In newer
// versions the module gets the options from the server, in older versions as arguments of the
// module. The path of the module is absolute, because the server changes to --dir before loading
// the module.
func valkeyScript(dir string) string {
	return "cd " + dir + ` || exit 1
at="--rdma-port 6379 --rdma-bind $ADDR"
grep -q '"rdma-bind"' src/config.c || at="port=6379 bind=$ADDR"
src/valkey-server --port 0 --protected-mode no --appendonly no --save '' --dir "$TMPDIR" --loadmodule "$PWD/src/valkey-rdma.so" $at &
s=$!
sleep 2
tests/rdma/rdma-test --thread 4 -h $ADDR
c=$?
kill $s
wait $s
exit $c
`
}

var (
	mpi4pyRan  = regexp.MustCompile(`Ran (\d+) tests in`)
	mpi4pyGood = regexp.MustCompile(`\bOK( \(skipped=\d+\))?`)
)

// judgeMPI4Py checks the summary of the suite from each rank. The output of a rank may begin in the
// middle of another rank's line.
func judgeMPI4Py(out string) (note string, err error) {
	ran, good := mpi4pyRan.FindAllStringSubmatch(out, -1), mpi4pyGood.FindAllString(out, -1)
	if len(ran) == 0 || len(good) != len(ran) || strings.Contains(out, "FAILED (") {
		return "", fmt.Errorf("%d ranks ran the suite, and %d passed it:\n%s", len(ran), len(good), out)
	}
	n, _ := strconv.Atoi(ran[0][1])
	return fmt.Sprintf("%d tests in each of %d ranks: %s", n, len(ran), good[0]), nil
}
