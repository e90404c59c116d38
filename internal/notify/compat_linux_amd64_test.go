package notify

import (
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	asCompatExec = "VIADUCT_TEST_COMPAT_EXEC"
	asCompatExit = "VIADUCT_TEST_COMPAT_EXIT"
	exitGroup32  = 252
	execve32     = 11
)

func init() {
	MaybeStub()
	if os.Getenv(asCompatExit) != "" {
		call32(exitGroup32, 7, 0, 0)
	}
	if os.Getenv(asCompatExec) != "" {
		compatExec("/bin/sh", "-c", "exit 7")
	}
}

// need32 skips the test where 32-bit calls of 64-bit programs do not work. The kernel may lack
// these calls (CONFIG_IA32_EMULATION, ia32_emulation=0), and some virtual machines let the
// instruction fault although the kernel has the calls. Go's runtime turns the fault into a panic,
// so the test checks the effect of a call instead of the program's end.
func need32(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), asCompatExit+"=1")
	c.Run()
	if c.ProcessState == nil || c.ProcessState.ExitCode() != 7 {
		t.Skipf("SKIPPED: 32-bit system calls do not work on this machine (%v): nothing was tested", c.ProcessState)
	}
}

// compatExec executes a program by a 32-bit system call, although this process has 64 bits.
// compatExec does not return.
func compatExec(argv ...string) {
	m := lowPage()
	base, le := uint32(uintptr(unsafe.Pointer(&m[0]))), binary.LittleEndian
	text := 2048
	for i, a := range argv {
		le.PutUint32(m[1024+4*i:], base+uint32(text))
		text += copy(m[text:], a) + 1
	}
	call32(execve32, base+2048, base+1024, base+3072) // path, arguments, and no environment
}

// call32 makes a 32-bit system call that does not return.
func call32(nr, ebx, ecx, edx uint32) {
	le := binary.LittleEndian
	code := le.AppendUint32([]byte{0xb8}, nr) // mov eax
	code = le.AppendUint32(append(code, 0xbb), ebx)
	code = le.AppendUint32(append(code, 0xb9), ecx)
	code = le.AppendUint32(append(code, 0xba), edx)
	code = append(code, 0xcd, 0x80, 0xcd, 3) // int 0x80, int 3
	m := lowPage()
	copy(m, code)
	at := &m[0]
	f := &at // a func value is a pointer to a pointer to its code
	(*(*func())(unsafe.Pointer(&f)))()
}

// lowPage maps an executable page at an address below 4 GiB, in the range of 32-bit calls.
func lowPage() []byte {
	m, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_32BIT)
	if err != nil {
		panic(err)
	}
	return m
}

// TestCompatExec: the listener gets the call if a 64-bit program executes another program by a
// 32-bit call.
func TestCompatExec(t *testing.T) {
	need32(t)
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
	if calls != 1 || ws.ExitStatus() != 7 {
		t.Errorf("%d calls, and the program ended with %d", calls, ws.ExitStatus())
	}
}
