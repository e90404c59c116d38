package memsvc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"path"
	"slices"
	"time"

	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/store"
)

// maxOpen bounds the ranges one client may have open.
const maxOpen = 16

// An Observer is told what a service does. Its functions may be nil; they are called
// from the goroutines of Serve.
type Observer struct {
	// Request is told of each request that was answered: open_read, open_write,
	// close_read, close_write, open_stream,
	// extend, close_stream, list, or invalid.
	Request func(operation string, took time.Duration, refused error)
	// Stored is told how many bytes a file has that a client has stored. What clients
	// read they fetch by RDMA Reads, which the service does not see.
	Stored func(n int64)
}

// Serve answers one client until it goes away, ctx ends or something fails. It
// closes conn, gives back all memory and removes what was not finished. The
// error is nil after an orderly end by the client.
func Serve(ctx context.Context, conn msg.Conn, s *store.Store, log *slog.Logger, watch Observer) error {
	if watch.Request == nil {
		watch.Request = func(string, time.Duration, error) {}
	}
	if watch.Stored == nil {
		watch.Stored = func(int64) {}
	}
	ses := &session{conn: conn, store: s, log: log, watch: watch, open: make(map[openKey]*opened)}
	err := ses.run(ctx)
	if ctx.Err() == nil {
		err = ses.explain(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		conn.Close()
	}()
	// The connection ends first, so that a client that is still writing sees
	// that end and no refusal. One that has stopped may keep Close waiting long;
	// unfinished files do not wait for it.
	t := time.NewTimer(dropAfter)
	defer t.Stop()
	select {
	case <-closed:
	case <-t.C:
	}
	for k := range ses.open {
		ses.drop(k)
	}
	<-closed
	return err
}

// explain names the file that shrank under a client's RDMA Read: the protocols
// report memory that is not there.
func (s *session) explain(err error) error {
	for k, o := range s.open {
		if o.view != nil && o.view.Shrank() {
			if err == nil {
				return fmt.Errorf("%s: %w", k.path, store.ErrShrank)
			}
			return fmt.Errorf("%s: %w (%w)", k.path, store.ErrShrank, err)
		}
	}
	return err
}

// dropAfter is how long open ranges outlast the end of their session.
const dropAfter = 200 * time.Millisecond

// A session is one client's.
type session struct {
	conn  msg.Conn
	store *store.Store
	log   *slog.Logger
	watch Observer
	open  map[openKey]*opened

	// What is left of the directory that was listed last, if it was cut, so that
	// to go on does not read it again.
	listed     string
	unanswered []store.Entry
}

type openKey struct{ path, mode string }

// An opened range is a view or an upload, and its registration.
type opened struct {
	view   *store.View
	upload *store.Upload
	region msg.Region

	// Of a stream: the piece that the client writes, and the hash of what is stored.
	piece    []byte
	hash     hash.Hash
	streamed int64 // bytes of pieces that were stored
}

func (s *session) run(ctx context.Context) error {
	for {
		m, err := s.conn.Recv(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		began := time.Now()
		var out []byte
		var q request
		if len(m.Data) > MaxMessage {
			err = fmt.Errorf("message of %d bytes, at most %d", len(m.Data), MaxMessage)
		} else if json.Unmarshal(m.Data, &q) != nil {
			err = errors.New("not a request in JSON")
		} else if out, err = s.handle(q); err != nil {
			s.log.Info("request refused", "op", q.Op, "path", q.Path, "mode", q.Mode, "err", err)
		}
		if err != nil {
			out = fail(err)
		}
		s.watch.Request(q.operation(), time.Since(began), err)
		if err := s.conn.Send(ctx, msg.Message{Data: out}); err != nil {
			return err
		}
	}
}

// operation names what is asked for.
func (q *request) operation() string {
	switch {
	case q.Op == "list":
		return q.Op
	case q.Op == "extend":
		return q.Op
	case (q.Op == "open" || q.Op == "close") && (q.Mode == "read" || q.Mode == "write" || q.Mode == "stream"):
		return q.Op + "_" + q.Mode
	}
	return "invalid"
}

func fail(err error) []byte {
	text := err.Error()
	if len(text) > 1000 { // a path may be in it
		text = text[:1000]
	}
	return encode(reply{Error: text})
}

func (s *session) handle(q request) ([]byte, error) {
	switch {
	case q.Op == "open" && q.Mode == "read":
		return s.openRead(q)
	case q.Op == "open" && q.Mode == "write":
		return s.openWrite(q)
	case q.Op == "open" && q.Mode == "stream":
		return s.openStream(q)
	case q.Op == "extend" && q.Mode == "stream":
		return s.extend(q)
	case q.Op == "close" && (q.Mode == "read" || q.Mode == "write" || q.Mode == "stream"):
		return s.close(q)
	case q.Op == "list":
		return s.list(q)
	case q.Op == "open" || q.Op == "close":
		return nil, fmt.Errorf("mode %q is neither read, write nor stream", q.Mode)
	}
	return nil, fmt.Errorf("unknown op %q", q.Op)
}

// admit checks that one more range may be opened under q's name.
func (s *session) admit(q request) (openKey, error) {
	k := openKey{path.Clean(q.Path), q.Mode}
	if _, ok := s.open[k]; ok {
		return k, errors.New("already open")
	}
	if len(s.open) >= maxOpen {
		return k, fmt.Errorf("too many open files, at most %d", maxOpen)
	}
	return k, nil
}

func (s *session) openRead(q request) ([]byte, error) {
	k, err := s.admit(q)
	if err != nil {
		return nil, err
	}
	v, err := s.store.View(q.Path, q.Offset, q.Length)
	if err != nil {
		return nil, err
	}
	o := &opened{view: v}
	if err := s.register(o, v.Data, msg.RemoteRead|msg.MayFault); err != nil {
		v.Close()
		return nil, err
	}
	s.open[k] = o
	s.log.Info("opened", "path", k.path, "mode", "read", "offset", q.Offset, "bytes", len(v.Data))
	r := o.reply(int64(len(v.Data)))
	r.Size = &v.Size
	return encode(r), nil
}

func (s *session) openWrite(q request) ([]byte, error) {
	k, err := s.admit(q)
	if err != nil {
		return nil, err
	}
	if q.Length < 0 || q.Offset != 0 {
		return nil, store.ErrRange
	}
	u, err := s.store.Create(q.Path, q.Length)
	if err != nil {
		return nil, err
	}
	o := &opened{upload: u}
	if err := s.register(o, u.Data, msg.RemoteWrite); err != nil {
		u.Abort()
		return nil, err
	}
	s.open[k] = o
	s.log.Info("opened", "path", k.path, "mode", "write", "bytes", q.Length)
	return encode(o.reply(q.Length)), nil
}

// streamPiece is the longest piece of a stream, and the memory that one costs.
const streamPiece = 1 << 20

// openStream begins a file whose length is not known. The client writes a piece at a
// time, which an extend stores.
func (s *session) openStream(q request) ([]byte, error) {
	k, err := s.admit(q)
	if err != nil {
		return nil, err
	}
	if q.Length < 0 || q.Offset != 0 {
		return nil, store.ErrRange
	}
	u, err := s.store.Create(q.Path, -1)
	if err != nil {
		return nil, err
	}
	n := int64(streamPiece)
	if q.Length > 0 {
		n = min(n, q.Length)
	}
	o := &opened{upload: u, piece: make([]byte, n), hash: sha256.New()}
	if err := s.register(o, o.piece, msg.RemoteWrite); err != nil {
		u.Abort()
		return nil, err
	}
	s.open[k] = o
	s.log.Info("opened", "path", k.path, "mode", "stream")
	return encode(o.reply(n)), nil
}

// extend stores the first q.Length bytes of a stream's piece and lends the client
// the memory for the next one.
func (s *session) extend(q request) ([]byte, error) {
	k := openKey{path.Clean(q.Path), q.Mode}
	o := s.open[k]
	if o == nil {
		return nil, errors.New("not open")
	}
	if q.Length < 0 || q.Length > int64(len(o.piece)) {
		return nil, store.ErrRange
	}
	o.unregister() // the client must not change what is being hashed
	b := o.piece[:q.Length]
	o.hash.Write(b)
	_, err := o.upload.Write(b)
	o.streamed += q.Length
	if err == nil {
		err = s.register(o, o.piece, msg.RemoteWrite)
	}
	if err != nil {
		s.drop(k)
		return nil, err
	}
	return encode(o.reply(int64(len(o.piece)))), nil
}

// register lends b to the client; an empty range needs no memory.
func (s *session) register(o *opened, b []byte, a msg.Access) (err error) {
	if len(b) > 0 {
		o.region, err = s.conn.Register(b, a)
	}
	return err
}

func (o *opened) reply(length int64) reply {
	var at msg.Remote
	if o.region != nil {
		at = o.region.Remote()
	}
	return reply{OK: true, Address: hexAddress(at.Address), Handle: &at.Handle, Length: &length}
}

// unregister takes the memory back from the client.
func (o *opened) unregister() {
	if o.region != nil {
		o.region.Close()
		o.region = nil
	}
}

// drop forgets a range without success.
func (s *session) drop(k openKey) {
	o := s.open[k]
	delete(s.open, k)
	o.unregister()
	if o.view != nil {
		o.view.Close()
	}
	if o.upload != nil {
		o.upload.Abort()
		s.log.Info("unfinished file removed", "path", k.path)
	}
}

func (s *session) close(q request) ([]byte, error) {
	k := openKey{path.Clean(q.Path), q.Mode}
	o := s.open[k]
	if o == nil {
		return nil, errors.New("not open")
	}
	// The client must not change what is being hashed.
	o.unregister()
	if o.view != nil {
		sum, err := o.view.Sum()
		s.drop(k)
		if err != nil {
			return nil, err
		}
		return encode(reply{OK: true, SHA256: hex.EncodeToString(sum[:])}), nil
	}
	want, err := parseSum(q.SHA256)
	if err != nil {
		s.drop(k)
		return nil, err
	}
	var sum [32]byte
	if o.hash != nil {
		sum = [32]byte(o.hash.Sum(nil))
	} else {
		sum = o.upload.Sum()
	}
	if sum != want {
		s.drop(k)
		return nil, fmt.Errorf("%w: stored bytes have %x", store.ErrSum, sum)
	}
	delete(s.open, k)
	n := int64(len(o.upload.Data)) + o.streamed
	if err := o.upload.Commit(); err != nil {
		return nil, err
	}
	s.watch.Stored(n)
	s.log.Info("stored", "path", k.path, "sha256", hex.EncodeToString(sum[:]))
	return encode(reply{OK: true, SHA256: hex.EncodeToString(sum[:])}), nil
}

func (s *session) list(q request) ([]byte, error) {
	var err error
	es := s.unanswered
	if q.After == "" || s.listed != q.Path || len(es) == 0 {
		if es, err = s.store.List(q.Path); err != nil {
			return nil, err
		}
	}
	from, _ := slices.BinarySearchFunc(es, q.After, func(e store.Entry, after string) int {
		if e.Name <= after {
			return -1
		}
		return 1
	})
	if q.After != "" {
		es = es[from:]
	}
	s.unanswered = nil
	// Cut to what a message holds: half until it fits, then add while it does.
	most := min(MaxMessage, s.conn.MaxMessage())
	r := reply{OK: true, Entries: &es}
	if b := encode(r); len(b) <= most {
		return b, nil
	}
	r.More = true
	size := len(encode(reply{OK: true, Entries: &[]store.Entry{}, More: true}))
	n := 0
	for n < len(es) {
		size += len(encode(es[n])) + 1
		if size > most {
			break
		}
		n++
	}
	s.listed, s.unanswered = q.Path, es[n:]
	es = es[:n]
	return encode(r), nil
}
