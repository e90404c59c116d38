package notify

import (
	"encoding/binary"
	"io"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	asCompatExec = "VIADUCT_TEST_COMPAT_EXEC"
	execve32     = 11
)

func init() {
	MaybeStub()
	if os.Getenv(asCompatExec) != "" {
		compatExec("/bin/sh", "-c", "exit 7")
	}
}

// compatExec executes a program by a 32-bit call of this 64-bit one. It does not return.
func compatExec(argv ...string) {
	m, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_32BIT)
	if err != nil {
		panic(err)
	}
	base, le := uint32(uintptr(unsafe.Pointer(&m[0]))), binary.LittleEndian
	list, text := m[1024:], 2048
	for i, a := range argv {
		le.PutUint32(list[4*i:], base+uint32(text))
		text += copy(m[text:], a) + 1
	}
	code := []byte{0xb8, execve32, 0, 0, 0, 0xbb} // eax, ebx: the path
	code = append(le.AppendUint32(code, base+2048), 0xb9)
	code = append(le.AppendUint32(code, base+1024), 0xba)                // ecx: arguments
	code = append(le.AppendUint32(code, base+3072), 0xcd, 0x80, 0xcd, 3) // edx: no environment; int 0x80, int 3
	copy(m, code)
	at := &m[0]
	f := &at // as a func is represented
	(*(*func())(unsafe.Pointer(&f)))()
}

// A program of 64 bits that executes another one by a 32-bit call is seen.
func TestCompatExec(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child, err := Start(&Command{Path: self, Args: []string{self}, Env: append(os.Environ(), asCompatExec+"=1"),
		Rules: []Rule{{Nr: execve32, Compat: true, Do: Notify}}})
	if err != nil {
		t.Fatal(err)
	}
	defer child.Listener.Close()
	calls := 0
	for {
		c, err := child.Listener.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !c.Compat || c.Nr != execve32 {
			t.Errorf("%v, 32-bit %v", c, c.Compat)
		}
		calls++
		c.Continue()
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(child.Pid, &ws, 0, nil); err != nil {
		t.Fatal(err)
	}
	if ws.Signaled() && ws.Signal() == unix.SIGSEGV {
		t.Skip("this kernel has no 32-bit calls")
	}
	if calls != 1 || ws.ExitStatus() != 7 {
		t.Errorf("%d calls, and the program ended with %d", calls, ws.ExitStatus())
	}
}
