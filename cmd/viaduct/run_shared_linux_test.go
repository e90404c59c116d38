//go:build linux && (amd64 || arm64) && !plaintcp

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaduct/sdp"
)

// Within one host, a program under viaduct run and a program with its own SDP exchange all bytes
// through shared memory, whichever program connects. If the accepting program is slow, as on a busy
// machine, a connection goes over TCP, and the test tries again.
func TestRunSharedMemory(t *testing.T) {
	t.Parallel()
	shared := func(es []explained, call string) (n int) {
		for _, e := range es {
			if e.Call == call && e.Path == "sdp" && strings.HasSuffix(e.Why, ", through shared memory") {
				n++
			}
		}
		return n
	}
	t.Run("connect", func(t *testing.T) {
		need(t, "curl", "curl")
		at, want := serveFile(t, 3<<20)
		got := filepath.Join(t.TempDir(), "got")
		eventually(t, "a connection through shared memory", func() bool {
			r, es := runRun(t, []string{"--require", "--to", at}, "curl", "-sS", "-o", got, "http://"+at+"/a.bin")
			if b, err := os.ReadFile(got); r.code != 0 || err != nil || !bytes.Equal(b, want) {
				t.Errorf("exit %d, %d bytes came, want %d: %v\n%s", r.code, len(b), len(want), err, r.stderr)
			}
			t.Logf("%+v", es)
			return shared(es, "connect") == 1
		})
	})
	t.Run("accept", func(t *testing.T) {
		port := strconv.Itoa(freePort(t))
		s := startRun(t, []string{"--listen", port}, buildCFile(t, "shapes"), "serve-many", port)
		sdpPort := s.sdpPort(port)
		var c *sdp.Conn
		eventually(t, "a connection through shared memory", func() bool {
			var err error
			if c, err = sdp.Dial("127.0.0.1:"+sdpPort, nil); err != nil {
				t.Fatal(err)
			}
			if err := echoOnce(c); err != nil {
				t.Error(err)
			}
			if c.Path().SharedMemory {
				return true
			}
			t.Logf("the client went by %v", c.Path())
			c.Close()
			time.Sleep(time.Second) // this process does not ask a slow listener again at once
			return false
		})
		c.CloseWrite()
		if _, err := io.ReadAll(c); err != nil {
			t.Error(err)
		}
		c.Close()
		s.stop(syscall.SIGTERM)
		if es := s.explained(); shared(es, "accept") != 1 {
			t.Errorf("not through shared memory: %+v", es)
		}
	})
}
