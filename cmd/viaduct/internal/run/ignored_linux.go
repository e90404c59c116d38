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

// A signalSet is a set of signals in the kernel's form: bit 0 stands for signal 1.
type signalSet uint64

func (s signalSet) has(sig syscall.Signal) bool { return s>>(sig-1)&1 != 0 }
func (s *signalSet) add(sig syscall.Signal)     { *s |= 1 << (sig - 1) }

// signals is the number of signals.
const signals = 64

// ignoredAtStart returns the signals ignored at the start of this process. The program must ignore
// the same signals. Call ignoredAtStart once, before the process takes SIGCONT.
//
// A pure Go program has no simpler way. The runtime replaces the handlers of most signals before
// any other code runs, so that /proc/self/status shows only the rest. Package signal knows the
// former handlers of SIGHUP and SIGINT only. The parent may ignore other signals than at the start
// of the child. A helper to run before the runtime would have to be another program, or C.
//
// The runtime stores the former handlers in runtime.fwdSig, a word for each signal. The linker does
// not let other packages name fwdSig, and most builds have no symbol table. Therefore the address
// is found by a value held only by fwdSig: ignoredAtStart sets the value as the kernel's handler of
// a signal left alone by the runtime, and then makes the runtime take the signal over. The runtime
// thereby stores the value in fwdSig.
//
// The search is safe at any moment: memory is only read, and the value is the address of a handler
// that does nothing if the signal arrives meanwhile. If the search fails, ignoredAtStart returns
// the signals still ignored by the kernel.
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

// ignoredNow returns the signals the kernel ignores for this process. Package signal reports only
// SIGHUP, SIGINT and the signals with a handler.
func ignoredNow() signalSet {
	b, _ := os.ReadFile("/proc/self/status")
	mask, _ := strconv.ParseUint(fieldOf(b, "SigIgn:"), 16, 64)
	return signalSet(mask)
}

// sigIgnore means an ignored signal in the kernel's table. 0 means the default, and any other value
// is the address of a handler.
const sigIgnore = 1

// emptyHandler returns the address of a signal handler that does nothing.
func emptyHandler() uintptr

// handlersAtStart returns the handlers of all signals at the start of the process, as saved by the
// runtime. The value is 0 for signals the runtime has left alone.
func handlersAtStart() (old [signals + 1]uint64, err error) {
	const probe = syscall.SIGCONT
	var was, marked [4]uint64 // struct sigaction: the handler, flags, the restorer, the mask
	if err := sigaction(probe, nil, &was); err != nil {
		return old, err
	}
	if was[0] > sigIgnore {
		return old, errors.New("run: the runtime has a handler for SIGCONT already")
	}
	// The handler keeps the flags and the restorer of the runtime's handler.
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

// sigaction makes the system call directly, because package signal does not let a program choose
// the handler's address.
func sigaction(sig syscall.Signal, set, old *[4]uint64) error {
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(set)),
		uintptr(unsafe.Pointer(old)), 8, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// findWords finds an array of n words in the variables of this program. The word at index is value,
// and no other word is. The error is nil only for exactly 1 match.
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
	var end string // end of the last mapping of this program
	for line := range bytes.Lines(maps) {
		f := strings.Fields(string(line)) // FROM-TO MODE OFFSET DEVICE INODE [PATH]
		if len(f) < 5 {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		// The mapping of zeroed variables has no path, and comes last.
		if ours := len(f) > 5 && f[5] == self || len(f) == 5 && from == end; !ours {
			continue
		}
		end = to
		if !strings.HasPrefix(f[1], "rw") {
			continue
		}
		table, err := findIn(mem, from, to, value, index, n)
		if err != nil {
			return nil, err
		}
		if table != nil && found != nil {
			return nil, errMarkTwice
		}
		if table != nil {
			found = table
		}
	}
	if found == nil {
		return nil, errors.New("run: the mark is not in the program's variables")
	}
	return found, nil
}

var errMarkTwice = errors.New("run: the mark is there twice")

// findIn is findWords for the mapping between two addresses. It returns nil if the mapping does not
// contain value. The variables of the command take 46 MB, mostly untouched by the process. A read
// in a single piece would fill as much memory, in each new process.
func findIn(mem io.ReaderAt, from, to string, value uint64, index, n int) (found []uint64, err error) {
	lo, err := strconv.ParseUint(from, 16, 63)
	if err != nil {
		return nil, err
	}
	hi, err := strconv.ParseUint(to, 16, 63)
	if err != nil {
		return nil, err
	}
	wanted := binary.NativeEndian.AppendUint64(nil, value)
	const piece = 1 << 16
	b := make([]byte, piece)
	for at := lo; at < hi; at += piece {
		b = b[:min(piece, hi-at)]
		if _, err := mem.ReadAt(b, int64(at)); err != nil {
			return nil, err
		}
		for _, i := range wordsEqual(b, wanted) {
			hit, before := at+uint64(i), uint64(8*index)
			if hit-lo < before || hit-before+uint64(8*n) > hi {
				continue
			}
			if found != nil {
				return nil, errMarkTwice
			}
			if found, err = readWords(mem, hit-before, n); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// wordsEqual returns the offsets in b of the words equal to w.
func wordsEqual(b, w []byte) (at []int) {
	for from := 0; ; {
		i := bytes.Index(b[from:], w)
		if i < 0 {
			return at
		}
		if i += from; i%len(w) == 0 {
			at = append(at, i)
		}
		from = i + 1
	}
}

func readWords(mem io.ReaderAt, from uint64, n int) ([]uint64, error) {
	b := make([]byte, 8*n)
	if _, err := mem.ReadAt(b, int64(from)); err != nil {
		return nil, err
	}
	words := make([]uint64, n)
	for i := range words {
		words[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
	return words, nil
}
