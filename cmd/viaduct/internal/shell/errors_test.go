package shell

import (
	"io/fs"
	"net"
	"strings"
	"syscall"
	"testing"

	"viaduct/sdp"
)

// TestAdvice: each remedy fits the error.
func TestAdvice(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{&fs.PathError{Op: "open", Path: "f", Err: syscall.EACCES}, "permissions of the file"},
		{&net.OpError{Op: "listen", Err: syscall.EACCES}, "port above 1023"},
		{&net.OpError{Op: "read", Err: net.ErrClosed}, "the other side ended"},
		{sdp.ErrReset, "the other side ended"},
	} {
		if got := LastLine("get", c.err); !strings.Contains(got, c.want) {
			t.Errorf("%v: %q, want %q in it", c.err, got, c.want)
		}
	}
}
