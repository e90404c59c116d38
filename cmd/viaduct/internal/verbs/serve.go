package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/httpfile"
	"viaduct/cmd/viaduct/internal/memsvc"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/store"
	"viaduct/cmd/viaduct/internal/token"
	"viaduct/cmd/viaduct/internal/transport"
)

// memReceives is the number of receives of the memory service. It exceeds the number of unanswered
// requests, so that over iWARP a sender seldom has to wait for a free receive. memReceiveSize is
// larger than any valid request, so that an oversized request, for example with a very long path,
// still arrives and can be answered.
const (
	memReceives    = 16
	memReceiveSize = 2 * memsvc.MaxMessage
)

// shutdownTime bounds how long a server waits for requests in progress.
const shutdownTime = interruptGrace

func serveCommand(e *shell.Env) *cobra.Command {
	var root, maxFile string
	var writable bool
	var listen []string
	var cf connFlags
	var rf registerFlags
	c := &cobra.Command{
		Use:   "serve --root DIR [--writable] --listen URL ...",
		Short: "serve a directory: by RDMA (vitcp, iwarp, fcvi) or HTTP (sdp, tcp)",
		Long: `Serve a directory: by RDMA (vitcp, iwarp, fcvi) or HTTP (sdp, tcp).

With --token-file, only clients with the same token are served. Over RDMA, both
sides prove that they have the token without sending it. Over HTTP it is a bearer
token, which others can read unless --tls is given. Only --tls protects the
transferred data.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if root == "" || len(listen) == 0 {
				return shell.Usagef("--root DIR and at least one --listen URL are needed")
			}
			max, err := addr.ParseSize(maxFile)
			if err != nil {
				return shell.Usage(fmt.Errorf("--max-file: %w", err))
			}
			us, ts, err := parseAll(listen)
			if err != nil {
				return err
			}
			if err := rf.check(us); err != nil {
				return err
			}
			s := &server{e: e, ts: ts, rf: &rf}
			o, err := cf.options(e, true, us...)
			if err != nil {
				return err
			}
			s.token = o.Token
			o.MTU, o.RecvCount, o.RecvSize = 0, memReceives, memReceiveSize
			if s.store, err = store.Open(root, writable, int64(min(max, 1<<62))); err != nil {
				err = fmt.Errorf("--root: %w", err)
				if fi, serr := os.Stat(root); serr == nil && !fi.IsDir() {
					err = shell.Hint(err, "name a directory")
				}
				return err
			}
			defer s.store.Close()
			return s.run(cmd.Context(), us, o)
		},
	}
	c.Flags().StringVar(&root, "root", "", "serve the files in `DIR`")
	c.Flags().BoolVar(&writable, "writable", false, "let clients store files")
	c.Flags().StringArrayVar(&listen, "listen", nil, "`URL` to listen on; may be repeated")
	c.Flags().StringVar(&maxFile, "max-file", "1T", "longest file a client may store, `BYTES`")
	cf.addToken(c, "answer only clients that have the token in `FILE`")
	rf.add(c, &cf)
	cf.add(c)
	return c
}

// A server serves a directory on any number of listeners.
type server struct {
	e     *shell.Env
	store *store.Store
	token *token.Token // nil: all clients are served
	ts    []*transport.Transport
	rf    *registerFlags
	wg    sync.WaitGroup
}

func (s *server) run(ctx context.Context, us []*addr.URL, o *transport.Options) error {
	var closers []func() error
	defer func() {
		ending(ctx, func() {
			var wg sync.WaitGroup
			for _, c := range closers {
				wg.Go(func() { c() })
			}
			wg.Wait()
			s.wg.Wait()
		})
	}()
	fail := make(chan error, len(us))
	var bound []*addr.URL
	for i, u := range us {
		if s.ts[i].IsStream() {
			l, err := s.ts[i].ListenStream(u, o)
			if err != nil {
				return fmt.Errorf("listen on %s: %w", u, err)
			}
			h := s.serveHTTP(l, u.Scheme, fail)
			closers = append(closers, func() error {
				end, cancel := context.WithTimeout(context.Background(), shutdownTime)
				defer cancel()
				h.Shutdown(end)
				return h.Close()
			})
			bound = append(bound, u.WithPort(l.Addr()))
			continue
		}
		l, err := s.ts[i].ListenMsg(u, o)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", u, err)
		}
		closers = append(closers, l.Close)
		s.wg.Go(func() { s.serveMemory(ctx, l, u.Scheme, fail) })
		bound = append(bound, u.WithPort(l.Addr()))
	}
	withdraw, err := s.rf.start(ctx, s.e, bound)
	defer withdraw()
	if err != nil {
		return err
	}
	for _, u := range bound {
		s.e.Listening(u)
	}
	if err := s.e.Ready(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		s.e.Log.Info("ending", "why", context.Cause(ctx))
		return nil
	case err := <-fail:
		return err
	}
}

func (s *server) serveHTTP(l net.Listener, scheme string, fail chan<- error) *http.Server {
	var mu sync.Mutex
	ended := map[net.Conn]func(){}
	log := s.e.Log.With("transport", scheme)
	files := httpfile.RequireToken(httpfile.NewHandler(s.store, log), s.token, log,
		func(err error) { s.denied(scheme, err) })
	h := &http.Server{
		Handler:           httpfile.Observe(files, s.observeHTTP(scheme)),
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          s.e.HTTPLog(),
		ConnState: func(c net.Conn, st http.ConnState) {
			mu.Lock()
			defer mu.Unlock()
			switch st {
			case http.StateNew:
				ended[c] = s.e.Metrics.Connection(scheme, "accept")
			case http.StateClosed, http.StateHijacked:
				if f := ended[c]; f != nil {
					f()
					delete(ended, c)
				}
			}
		},
	}
	s.wg.Go(func() {
		if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			fail <- err
		}
	})
	return h
}

// observeHTTP returns the observer that counts the HTTP requests of a transport.
func (s *server) observeHTTP(scheme string) func(httpfile.Request) {
	in, out := s.e.Metrics.Bytes(scheme, "in"), s.e.Metrics.Bytes(scheme, "out")
	return func(r httpfile.Request) {
		in.Add(float64(r.Received))
		out.Add(float64(r.Sent))
		var refused error
		if r.Status >= 400 {
			refused = errors.New(http.StatusText(r.Status))
		}
		s.e.Metrics.Request(scheme, r.Operation, r.Took, refused)
	}
}

// observeMemory returns the observer that counts the memory service's requests of a transport.
func (s *server) observeMemory(scheme string) memsvc.Observer {
	in := s.e.Metrics.Bytes(scheme, "in")
	return memsvc.Observer{
		Request: func(op string, took time.Duration, refused error) {
			s.e.Metrics.Request(scheme, op, took, refused)
			s.denied(scheme, refused)
		},
		Stored: func(n int64) { in.Add(float64(n)) },
	}
}

// denied counts requests refused because of the token.
func (s *server) denied(scheme string, refused error) {
	switch {
	case errors.Is(refused, token.ErrMissing):
		s.e.Metrics.Denied(scheme, "missing")
	case errors.Is(refused, token.ErrWrong):
		s.e.Metrics.Denied(scheme, "wrong")
	}
}

func (s *server) serveMemory(ctx context.Context, l msg.Listener, scheme string, fail chan<- error) {
	watch := s.observeMemory(scheme)
	for {
		c, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				fail <- err
			}
			return
		}
		s.wg.Go(func() {
			defer s.e.Metrics.Connection(scheme, "accept")()
			log := s.e.Log.With("transport", scheme, "remote", c.RemoteAddr().String())
			log.Info("connected")
			err := memsvc.Serve(ctx, c, s.store, s.token, log, watch)
			if err != nil && ctx.Err() == nil {
				s.e.Metrics.Failed(scheme, err)
				log.Warn("connection failed", "err", err)
				return
			}
			log.Info("disconnected")
		})
	}
}
