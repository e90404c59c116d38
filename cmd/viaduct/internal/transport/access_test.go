package transport

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/internal/testkit"
)

// TestRemoteAccess: a read of memory released by the other end ends as a [msg.RemoteAccessError],
// whether or not the peer's report names the request.
func TestRemoteAccess(t *testing.T) {
	for _, s := range []string{"iwarp://127.0.0.1:0", "vitcp://127.0.0.1:0/x"} {
		u, tr := parse(t, s)
		t.Run(tr.Scheme, func(t *testing.T) {
			o := testOptions(t)
			l, err := tr.ListenMsg(u, o)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			granted := make(chan msg.Remote, 1)
			go func() {
				c, err := l.Accept(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				r, err := c.Register(make([]byte, 64), msg.RemoteRead)
				if err != nil {
					t.Error(err)
					return
				}
				where := r.Remote()
				r.Close()
				granted <- where
				c.Recv(ctx) // Recv serves the read
			}()
			at, _ := parse(t, fmt.Sprintf("%s://%s", tr.Scheme, l.Addr())+map[string]string{"vitcp": "/x"}[tr.Scheme])
			c, err := tr.DialMsg(ctx, at, o)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			local, err := c.Register(make([]byte, 64), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer local.Close()
			if err := c.PostRead(local, 0, 64, <-granted); err != nil {
				t.Fatal(err)
			}
			err = c.Reap(ctx)
			if _, ok := errors.AsType[*msg.RemoteAccessError](err); !ok {
				t.Errorf("%v, want a RemoteAccessError", err)
			}
		})
	}
}
