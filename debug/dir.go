package debug

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrUnsafe says that a run directory belongs to another user, or can be
// written or looked into by others.
var ErrUnsafe = errors.New("debug: the run directory is not this user's alone")

// RunDir is where the sockets of this user's processes are:
// $XDG_RUNTIME_DIR/viaduct, or viaduct-UID in the directory for temporary files.
func RunDir() string {
	if d := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) {
		if st, err := os.Stat(d); err == nil && st.IsDir() {
			return filepath.Join(d, "viaduct")
		}
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("viaduct-%d", os.Getuid()))
}

// makeDir makes a directory for this user alone, or checks that it is one.
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

// suffix ends the name of a status socket; before it is the number of its
// process, and after a point, for the second socket of a process, another.
const suffix = ".sock"

// bind makes the socket. What is in its place is left by a process that had the
// same number, or a socket of this one.
func bind(dir string) (*net.UnixListener, string, error) {
	for n := 0; ; n++ {
		name := strconv.Itoa(os.Getpid())
		if n > 0 {
			name += "." + strconv.Itoa(n)
		}
		path := filepath.Join(dir, name+suffix)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			l.SetUnlinkOnClose(false) // Close removes it, and knows whether it did before
			if err := os.Chmod(path, 0o600); err != nil {
				l.Close()
				os.Remove(path)
				return nil, "", err
			}
			return l, path, nil
		}
		if _, serr := os.Lstat(path); serr != nil || n >= 100 {
			return nil, "", err
		}
		if c, derr := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"}); derr == nil {
			c.Close() // a socket of this process
			continue
		}
		os.Remove(path)
		n--
	}
}

// pidOf reads the number of the process from the name of a socket.
func pidOf(name string) (pid int, ok bool) {
	name, ok = strings.CutSuffix(name, suffix)
	if !ok {
		return 0, false
	}
	name, _, _ = strings.Cut(name, ".")
	pid, err := strconv.Atoi(name)
	return pid, err == nil && pid > 0
}
