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
	"viaduct/cmd/viaduct/internal/token"
)

// maxOpen bounds the open ranges of a client.
const maxOpen = 16

// An Observer counts the work of a service. An Observer's functions may be nil. The goroutines of
// Serve call the functions.
type Observer struct {
	// Request is called after each answer, with the operation: open_read, open_write, close_read,
	// close_write, extend, list, auth, or invalid. If the request was refused because of the token,
	// refused matches token.ErrMissing or token.ErrWrong.
	Request func(operation string, took time.Duration, refused error)
	// Stored is called with the length of each file a client has stored. Reads of files are not
	// counted, because the service does not see RDMA Reads.
	Stored func(n int64)
}

// Serve answers one client until the client disconnects, ctx ends or an error occurs. If tok is not
// nil, the client first has to prove possession of the token. Serve closes conn, releases all
// memory and removes unfinished files. The error is nil after an orderly end by the client.
func Serve(ctx context.Context, conn msg.Conn, s *store.Store, tok *token.Token, log *slog.Logger, watch Observer) error {
	if watch.Request == nil {
		watch.Request = func(string, time.Duration, error) {}
	}
	if watch.Stored == nil {
		watch.Stored = func(int64) {}
	}
	ses := &session{conn: conn, store: s, token: tok, log: log, watch: watch, open: make(map[openKey]*opened)}
	err := ses.run(ctx)
	if ctx.Err() == nil {
		err = ses.explain(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		conn.Close()
	}()
	// The connection is closed first, so that a still writing client sees the end of the connection
	// instead of an access error. Close may wait long for a stopped client. The timer removes
	// unfinished files without waiting for Close.
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

// explain adds the name of a file truncated during a client's RDMA Read to err, because the
// protocols only report missing memory. explain returns err unchanged if no open file has become
// too short.
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

// A session is the state of one client's connection.
type session struct {
	conn  msg.Conn
	store *store.Store
	token *token.Token // nil if clients need no token
	log   *slog.Logger
	watch Observer
	open  map[openKey]*opened

	// Remaining entries of the last listed directory, kept so that the next request does not read
	// the directory again.
	listed     store.Text
	unanswered []store.Entry

	nonces *[2]token.Nonce // of client and server, for the next proof; nil if there are none
	proven bool            // the client has proven that it has the token
}

type openKey struct{ path, mode string }

// An opened range has one of three forms: a view of a file to read, a whole file to write, or an
// upload in pieces.
type opened struct {
	region msg.Region
	view   *store.View
	upload *upload
}

// An upload is a file a client stores. The client fills the next pieces while the server stores a
// piece.
type upload struct {
	*store.Upload
	length int64 // length of the whole file, -1 if unknown
	stored int64 // bytes stored so far
	hash   hash.Hash
	whole  []byte // the mapped file, if the client writes the file as a whole; otherwise nil
	pieces []lent
	next   int   // index of the piece that is stored next
	failed error // why the upload failed; the client may still write to its pieces
}

// A lent piece is memory the client may write to while region is set.
type lent struct {
	mem    []byte
	region msg.Region
}

func (s *session) run(ctx context.Context) error {
	err := s.authenticate(ctx)
	for err == nil {
		err = s.answer(ctx, s.handle)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// answer receives one request, calls handle and sends the answer. The error matches io.EOF after an
// orderly end by the client, also if the client ends the connection as soon as it has the answer
// and before Send has returned.
func (s *session) answer(ctx context.Context, handle func(request) ([]byte, error)) error {
	m, err := s.conn.Recv(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	var out []byte
	var q request
	if len(m.Data) > MaxMessage {
		err = fmt.Errorf("message of %d bytes, at most %d", len(m.Data), MaxMessage)
	} else if json.Unmarshal(m.Data, &q) != nil {
		err = errors.New("not a request in JSON")
	} else if out, err = handle(q); err != nil {
		level := slog.LevelInfo
		if errors.Is(err, token.ErrMissing) || errors.Is(err, token.ErrWrong) {
			level = slog.LevelWarn
		}
		s.log.Log(ctx, level, "request refused", "op", q.Op, "path", q.Path, "mode", q.Mode, "err", err)
	}
	if err != nil {
		out = fail(err)
	}
	s.watch.Request(q.operation(), time.Since(began), err)
	return s.conn.Send(ctx, msg.Message{Data: out})
}

// The time and the number of requests for a client's proof of the token. A proof takes two
// requests.
const (
	authTime     = 10 * time.Second
	authRequests = 6
)

// authenticate answers requests until the client has proven possession of the token.
func (s *session) authenticate(ctx context.Context) error {
	if s.token == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, authTime)
	defer cancel()
	for range authRequests {
		if err := s.answer(ctx, s.auth); err != nil || s.proven {
			return err
		}
	}
	return fmt.Errorf("%w: %d requests without it", token.ErrMissing, authRequests)
}

// auth answers a client without a proof so far.
func (s *session) auth(q request) ([]byte, error) {
	switch {
	case q.Op != "auth":
		return nil, token.ErrMissing
	case q.Proof == "":
		n, err := parse32("nonce", q.Nonce)
		if err != nil {
			return nil, err
		}
		s.nonces = &[2]token.Nonce{n, token.NewNonce()}
		return encode(reply{OK: true, Nonce: hex.EncodeToString(s.nonces[1][:])}), nil
	case s.nonces == nil:
		return nil, errors.New("a proof comes after a nonce")
	}
	n := *s.nonces
	s.nonces = nil // a nonce is good for one proof
	p, err := parse32("proof", q.Proof)
	if err != nil {
		return nil, err
	}
	if !s.token.Verify(token.Client, n[0], n[1], p) {
		return nil, token.ErrWrong
	}
	s.proven = true
	p = s.token.Prove(token.Server, n[0], n[1])
	return encode(reply{OK: true, Proof: hex.EncodeToString(p[:])}), nil
}

// operation returns the name of the operation for Observer.Request.
func (q *request) operation() string {
	switch {
	case q.Op == "list", q.Op == "extend", q.Op == "auth":
		return q.Op
	case (q.Op == "open" || q.Op == "close") && (q.Mode == "read" || q.Mode == "write"):
		return q.Op + "_" + q.Mode
	}
	return "invalid"
}

func fail(err error) []byte {
	text := err.Error()
	if len(text) > 1000 { // the text may contain a path
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
	case q.Op == "extend" && q.Mode == "write":
		return s.extend(q)
	case q.Op == "close" && q.Mode == "read":
		return s.closeRead(q)
	case q.Op == "close" && q.Mode == "write":
		return s.closeWrite(q)
	case q.Op == "list":
		return s.list(q)
	case q.Op == "auth" && s.token == nil:
		return nil, errors.New("this server has no token")
	case q.Op == "auth":
		return nil, errors.New("the token was proven already")
	case q.Op == "open" || q.Op == "extend" || q.Op == "close":
		return nil, fmt.Errorf("mode %q is neither read nor write", q.Mode)
	}
	return nil, fmt.Errorf("unknown op %q", q.Op)
}

// admit returns the key of q's range. admit fails if the same range or too many ranges are open.
func (s *session) admit(q request) (openKey, error) {
	k := openKey{path.Clean(string(q.Path)), q.Mode}
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
	v, err := s.store.View(string(q.Path), q.Offset, q.Length)
	if err != nil {
		return nil, err
	}
	o := &opened{view: v}
	r, err := s.register(o, v.Data, msg.RemoteRead|msg.Guarded)
	if err != nil {
		v.Close()
		return nil, err
	}
	s.open[k] = o
	r.Size = &v.Size
	s.log.Info("opened", "path", k.path, "mode", "read", "offset", q.Offset, "bytes", len(v.Data))
	return encode(r), nil
}

// register lends the client a range and makes the answer with the address of the range.
func (s *session) register(o *opened, b []byte, a msg.Access) (r reply, err error) {
	n := int64(len(b))
	r = reply{OK: true, Address: hexAddress(0), Handle: new(uint32), Length: &n}
	if n > 0 { // an empty range needs no memory
		if o.region, err = s.conn.Register(b, a); err != nil {
			return r, err
		}
		at := o.region.Remote()
		r.Address, r.Handle = hexAddress(at.Address), &at.Handle
	}
	return r, nil
}

// The memory of an upload: uploadPieces pieces of uploadPiece bytes. A piece is long enough to make
// the cost of messages irrelevant, and short enough to stay in the cache during hashing and
// writing. One piece is being stored, one is arriving, and one waits between the two.
const (
	uploadPiece  = 1 << 20
	uploadPieces = 3 // fewer than the receives that a client and a server post
)

func (s *session) openWrite(q request) ([]byte, error) {
	k, err := s.admit(q)
	if err != nil {
		return nil, err
	}
	if q.Length < -1 || q.Length < 0 && !q.Pieces || q.Offset != 0 {
		return nil, store.ErrRange
	}
	file, err := s.store.Create(string(q.Path), q.Length)
	if err != nil {
		return nil, err
	}
	u := &upload{Upload: file, length: q.Length, hash: sha256.New()}
	o := &opened{upload: u}
	s.open[k] = o
	s.log.Info("opened", "path", k.path, "mode", "write", "bytes", q.Length)
	r, err := s.lendUpload(o, q.Pieces)
	if err != nil {
		s.drop(k)
		return nil, err
	}
	return encode(r), nil
}

// lendUpload lends the client the memory for the file's bytes: buffers if pieces is set, and
// otherwise a mapping of the file. A mapping costs more.
func (s *session) lendUpload(o *opened, pieces bool) (r reply, err error) {
	u := o.upload
	if !pieces {
		if u.whole, err = u.Map(u.length); err != nil {
			return r, err
		}
		return s.register(o, u.whole, msg.RemoteWrite)
	}
	most := uint64(u.length) // an unknown length, -1, becomes the largest number
	size := int64(min(most, uploadPiece))
	r = reply{OK: true, Length: &size}
	for left := most; left > 0 && len(u.pieces) < uploadPieces; left -= min(left, uploadPiece) {
		u.pieces = append(u.pieces, lent{mem: make([]byte, size)})
		p, err := s.lend(&u.pieces[len(u.pieces)-1])
		if err != nil {
			return r, err
		}
		r.Pieces = append(r.Pieces, p)
	}
	return r, nil
}

// lend lets the client write to p.
func (s *session) lend(p *lent) (piece, error) {
	r, err := s.conn.Register(p.mem, msg.RemoteWrite)
	if err != nil {
		return piece{}, err
	}
	p.region = r
	at := r.Remote()
	return piece{hexAddress(at.Address), at.Handle}, nil
}

// takeBack ends the client's access to p, because the bytes must not change after they were hashed.
func (p *lent) takeBack() {
	if p.region != nil {
		p.region.Close()
		p.region = nil
	}
}

// store hashes the first n bytes of the next piece, writes the bytes to the file and returns the
// piece. After an error, every further call returns the same error.
func (u *upload) store(n int64) (*lent, error) {
	var p *lent
	if u.next < len(u.pieces) {
		p = &u.pieces[u.next]
	}
	switch {
	case u.failed != nil:
		return nil, u.failed
	case n < 0, n > 0 && p == nil, n > 0 && n > int64(len(p.mem)), u.length >= 0 && n > u.length-u.stored:
		u.failed = store.ErrRange
		return nil, u.failed
	case n == 0:
		return p, nil
	}
	p.takeBack()
	u.hash.Write(p.mem[:n])
	if _, u.failed = u.Write(p.mem[:n]); u.failed != nil {
		return nil, u.failed
	}
	u.stored += n
	u.next = (u.next + 1) % len(u.pieces)
	return p, nil
}

// extend stores the next piece and lends the piece again. If storing fails, for example because the
// disk is full, the file is discarded, but the client keeps its pieces until the close of the file.
// The client may be writing to the pieces, and an access error would end the connection before the
// client has read the reason.
func (s *session) extend(q request) ([]byte, error) {
	o := s.open[openKey{path.Clean(string(q.Path)), q.Mode}]
	if o == nil {
		return nil, errors.New("not open")
	}
	switch {
	case o.region != nil:
		return nil, errors.New("not opened by pieces")
	case q.Length == 0:
		return nil, store.ErrRange
	}
	p, err := o.upload.store(q.Length)
	if err != nil {
		o.upload.Abort()
		return nil, err
	}
	again, err := s.lend(p)
	if err != nil {
		o.upload.failed = err
		o.upload.Abort()
		return nil, err
	}
	return encode(reply{OK: true, Pieces: []piece{again}}), nil
}

// drop closes a range and discards an unfinished file.
func (s *session) drop(k openKey) {
	o := s.open[k]
	delete(s.open, k)
	if o.region != nil {
		o.region.Close()
	}
	if o.view != nil {
		o.view.Close()
	}
	if u := o.upload; u != nil {
		u.release()
		u.Abort()
		s.log.Info("unfinished file removed", "path", k.path)
	}
}

// release ends the client's access to all pieces.
func (u *upload) release() {
	for i := range u.pieces {
		u.pieces[i].takeBack()
	}
}

func (s *session) closeRead(q request) ([]byte, error) {
	k := openKey{path.Clean(string(q.Path)), q.Mode}
	o := s.open[k]
	if o == nil {
		return nil, errors.New("not open")
	}
	sum, err := o.view.Sum()
	s.drop(k)
	if err != nil {
		return nil, err
	}
	return encode(reply{OK: true, SHA256: hex.EncodeToString(sum[:])}), nil
}

// closeWrite stores the last bytes of the file, from the next piece. Then the file becomes visible
// if length and SHA-256 equal the request's.
func (s *session) closeWrite(q request) ([]byte, error) {
	k := openKey{path.Clean(string(q.Path)), q.Mode}
	o := s.open[k]
	if o == nil {
		return nil, errors.New("not open")
	}
	u := o.upload
	u.release()
	want, err := parseSum(q.SHA256)
	switch {
	case err != nil:
	case o.region != nil:
		o.region.Close() // the bytes must not change after they were hashed
		o.region = nil
		u.hash.Write(u.whole)
		u.stored = u.length
	default:
		_, err = u.store(q.Length)
	}
	if err == nil && u.length >= 0 && u.stored != u.length {
		err = fmt.Errorf("%w: %d of %d bytes were stored", store.ErrRange, u.stored, u.length)
	}
	sum := [32]byte(u.hash.Sum(nil))
	if err == nil && sum != want {
		err = fmt.Errorf("%w: stored bytes have %x", store.ErrSum, sum)
	}
	if err != nil {
		s.drop(k)
		return nil, err
	}
	delete(s.open, k)
	if err := u.Commit(); err != nil {
		return nil, err
	}
	s.watch.Stored(u.stored)
	s.log.Info("stored", "path", k.path, "sha256", hex.EncodeToString(sum[:]))
	return encode(reply{OK: true, SHA256: hex.EncodeToString(sum[:])}), nil
}

func (s *session) list(q request) ([]byte, error) {
	var err error
	es := s.unanswered
	if q.After == "" || s.listed != q.Path || len(es) == 0 {
		if es, err = s.store.List(string(q.Path)); err != nil {
			return nil, err
		}
	}
	from, _ := slices.BinarySearchFunc(es, q.After, func(e store.Entry, after store.Text) int {
		if e.Name <= after {
			return -1
		}
		return 1
	})
	if q.After != "" {
		es = es[from:]
	}
	s.unanswered = nil
	// The listing must fit into one message. The listing gets as many entries as there is room for,
	// and the others stay in unanswered.
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
