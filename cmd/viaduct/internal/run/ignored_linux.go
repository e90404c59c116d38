//go:build linux && (amd64 || arm64)

package run

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A signalSet is a set of signals as the kernel writes it: bit 0 stands for signal 1.
type signalSet uint64

func (s signalSet) has(sig syscall.Signal) bool { return s>>(sig-1)&1 != 0 }
func (s *signalSet) add(sig syscall.Signal)     { *s |= 1 << (sig - 1) }

// signals are all there are.
const signals = 64

// ignoredAtStart returns the signals that were ignored when this process was executed: they are to
// be ignored in the program as well. It may be called once, before the process takes SIGCONT.
//
// There is no plainer way in a program of pure Go. Go's runtime puts its own handlers in place of
// most signals before any other code runs, so /proc/self/status shows what it has left, and package
// signal knows what was ignored of SIGHUP and SIGINT only. The parent may ignore other signals than
// its child was started with. A first step that looks before the runtime begins would have to be
// another program, or C.
//
// The runtime keeps what was there before in runtime.fwdSig, one word for each signal. The linker
// lets no other package name that variable, and most builds have no table of symbols. So the place is
// found by what the runtime writes there: a value that no other word of its data has, put into the
// kernel's table for a signal that the runtime has left alone and takes over on demand.
//
// That is safe at any moment: memory is only read, and the value is the address of a handler that
// does nothing, should the signal come meanwhile. Whatever does not look as expected is no reason to
// fail: the signals are returned then that the kernel still ignores.
func ignoredAtStart() signalSet {
	ignored := ignoredNow()
	old, err := handlersAtStart()
	if err != nil {
		return ignored
	}
	for sig, handler := range old {
		if handler == sigIgnore {
			ignored.add(syscall.Signal(sig))
		}
	}
	return ignored
}

// ignoredNow returns the signals that the kernel ignores for this process. Package signal
// knows it only of SIGHUP, SIGINT and what it was told.
func ignoredNow() signalSet {
	b, _ := os.ReadFile("/proc/self/status")
	mask, _ := strconv.ParseUint(fieldOf(b, "SigIgn:"), 16, 64)
	return signalSet(mask)
}

// sigIgnore stands for an ignored signal in the kernel's table, where 0 is the default and any
// other value the address of a handler.
const sigIgnore = 1

// emptyHandler returns the address of a signal handler that does nothing.
func emptyHandler() uintptr

// handlersAtStart returns what the runtime found in the kernel's table when the process began,
// by signal. Of signals that it has left alone it is 0.
func handlersAtStart() (old [signals + 1]uint64, err error) {
	const probe = syscall.SIGCONT
	var was, marked [4]uint64 // struct sigaction: the handler, flags, the restorer, the mask
	if err := sigaction(probe, nil, &was); err != nil {
		return old, err
	}
	if was[0] > sigIgnore {
		return old, errors.New("run: the runtime has a handler for SIGCONT already")
	}
	// On which stack a handler runs, and how it returns, is as with the runtime's.
	if err := sigaction(syscall.SIGQUIT, nil, &marked); err != nil {
		return old, err
	}
	if marked[0] <= sigIgnore {
		return old, errors.New("run: the runtime has no handler for SIGQUIT")
	}
	mark := uint64(emptyHandler())
	marked[0] = mark
	if err := sigaction(probe, &marked, nil); err != nil {
		return old, err
	}
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, probe)
	signal.Stop(ch)
	if err := sigaction(probe, &was, nil); err != nil {
		return old, err
	}
	table, err := findWords(mark, int(probe), len(old))
	if err != nil {
		return old, err
	}
	copy(old[:], table)
	old[probe] = was[0]
	for sig, handler := range old {
		if handler > sigIgnore {
			return old, fmt.Errorf("run: signal %d had a handler before the program was executed", sig)
		}
	}
	return old, nil
}

// sigaction is the kernel's; package signal has no way around the runtime.
func sigaction(sig syscall.Signal, set, old *[4]uint64) error {
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// findWords finds an array of n words in the variables of this program by the value of one of
// them, which no other word has.
func findWords(value uint64, index, n int) ([]uint64, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	var found []uint64
	var end string // of the last piece of this program
	for line := range bytes.Lines(maps) {
		f := strings.Fields(string(line)) // FROM-TO MODE OFFSET DEVICE INODE [PATH]
		if len(f) < 5 {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		// Variables that are zero at the start have no path, and come last.
		if ours := len(f) > 5 && f[5] == self || len(f) == 5 && from == end; !ours {
			continue
		}
		end = to
		if !strings.HasPrefix(f[1], "rw") {
			continue
		}
		words, err := readWords(mem, from, to)
		if err != nil {
			return nil, err
		}
		for i, w := range words {
			if w != value || i < index || i-index+n > len(words) {
				continue
			}
			if found != nil {
				return nil, errors.New("run: the mark is there twice")
			}
			found = words[i-index : i-index+n]
		}
	}
	if found == nil {
		return nil, errors.New("run: the mark is not in the program's variables")
	}
	return found, nil
}

// readWords reads what is between two addresses.
func readWords(mem io.ReaderAt, from, to string) ([]uint64, error) {
	lo, err := strconv.ParseUint(from, 16, 63)
	if err != nil {
		return nil, err
	}
	hi, err := strconv.ParseUint(to, 16, 63)
	if err != nil {
		return nil, err
	}
	b := make([]byte, hi-lo)
	if _, err := mem.ReadAt(b, int64(lo)); err != nil {
		return nil, err
	}
	words := make([]uint64, len(b)/8)
	for i := range words {
		words[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
	return words, nil
}
