package shell

import (
	"strings"
	"sync"

	"viaduct/internal/status"
)

// Status is the status socket of this process, read by "viaduct ps". The socket is created when
// there is something to show. A nil Status shows nothing.
type Status struct {
	e    *Env
	once sync.Once
	s    *status.Server
}

func newStatus(e *Env) *Status { return &Status{e: e} }

// Server returns the server for listing connections, or nil if the socket cannot be created,
// because everything else works without the socket.
func (s *Status) Server() *status.Server {
	if s == nil {
		return nil
	}
	s.once.Do(func() {
		var err error
		if s.s, err = status.Listen(status.Config{Program: commandLine(s.e.Command), Version: Version()}); err != nil {
			s.e.Log.Info("no status socket: viaduct ps does not show this process", "err", err)
		}
	})
	return s.s
}

// close removes the socket. If Server was not called before, Server returns nil from then on.
func (s *Status) close() {
	if s == nil {
		return
	}
	s.once.Do(func() {})
	s.s.Close()
}

// commandLine returns the verb with the arguments, truncated if long.
func commandLine(args []string) string {
	const most = 200
	line := strings.Join(args, " ")
	if len(line) > most {
		line = strings.ToValidUTF8(line[:most], "") + "..."
	}
	return line
}
