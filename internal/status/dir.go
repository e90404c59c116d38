package status

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// ErrUnsafe means that a run directory belongs to another user, or can be written or read by other
// users.
var ErrUnsafe = errors.New("status: the run directory is not this user's alone")

// RunDir returns the directory of the sockets of the user's processes: $XDG_RUNTIME_DIR/viaduct, or
// viaduct-UID in the directory for temporary files.
func RunDir() string {
	if d := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) {
		if st, err := os.Stat(d); err == nil && st.IsDir() {
			return filepath.Join(d, "viaduct")
		}
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("viaduct-%d", os.Getuid()))
}

// makeDir creates dir with access for the user only. If dir exists and others have access, makeDir
// returns ErrUnsafe.
func makeDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return checkDir(dir)
}

func checkDir(dir string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() || !isOurs(st) {
		return fmt.Errorf("%w: %s", ErrUnsafe, dir)
	}
	return nil
}

// suffix ends the name of a status socket. The name begins with the process ID; the second socket
// of a process has another number after a dot.
const suffix = ".sock"

// coming is the suffix of a socket that is bound but does not listen yet. Clients ignore such a
// socket, because a client removes a socket that does not listen, as the socket of a dead process.
const coming = ".new"

// binding serializes the creation of sockets in the process, because all use the same temporary
// name.
var binding sync.Mutex

// bind creates a socket in dir and returns the listener and the path. The socket gets the final
// name only once it listens, and replaces an older socket of the same name: a socket of this
// process, or of a dead process with the same ID.
func bind(dir string) (*net.UnixListener, string, error) {
	binding.Lock()
	defer binding.Unlock()
	pid := filepath.Join(dir, strconv.Itoa(os.Getpid()))
	os.Remove(pid + coming)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: pid + coming, Net: "unix"})
	if err != nil {
		return nil, "", err
	}
	defer os.Remove(pid + coming)
	l.SetUnlinkOnClose(false) // Server.Close removes the socket, so the listener must not remove it too
	path, err := settle(pid)
	if err != nil {
		l.Close()
		return nil, "", err
	}
	return l, path, nil
}

// settle renames the new socket to the final name and returns the new path. If another live socket
// of the process has the name, settle tries the next number, and fails after 100.
func settle(pid string) (path string, err error) {
	if err := os.Chmod(pid+coming, 0o600); err != nil {
		return "", err
	}
	for n := 0; n <= 100; n++ {
		path = pid + suffix
		if n > 0 {
			path = pid + "." + strconv.Itoa(n) + suffix
		}
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return path, os.Rename(pid+coming, path)
		}
		if err == nil {
			c.Close() // a live socket of this process has the name
		}
	}
	return "", fmt.Errorf("status: all names of this process in %s are in use", filepath.Dir(pid))
}

// pidOf returns the process ID in the name of a socket. ok is false if the name does not name a
// socket.
func pidOf(name string) (pid int, ok bool) {
	name, ok = strings.CutSuffix(name, suffix)
	if !ok {
		return 0, false
	}
	name, _, _ = strings.Cut(name, ".")
	pid, err := strconv.Atoi(name)
	return pid, err == nil && pid > 0
}
