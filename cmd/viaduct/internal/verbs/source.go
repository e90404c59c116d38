package verbs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"time"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/httpfile"
	"viaduct/cmd/viaduct/internal/memsvc"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/store"
	"viaduct/cmd/viaduct/internal/token"
)

// openStream opens a source for put to read to the end: standard input ("-"), a pipe or a device. A
// pipe waits for a writer.
func openStream(ctx context.Context, e *shell.Env, name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(e.Stdin), nil
	}
	return openPipe(ctx, name, os.O_RDONLY)
}

// putStream stores the bytes of in, whose length is not known in advance, and prints the result.
// name is the name of the source in messages.
func putStream(ctx context.Context, e *shell.Env, fc fileClient, u *addr.URL, name string, in io.Reader) error {
	r := &transferResult{Verb: "put", URL: u.String(), File: store.Text(name), Transport: u.Scheme}
	_, r.Mechanism = fc.Mechanisms()
	bar := e.Progress(name, -1, 0)
	h := sha256.New()
	start := time.Now()
	err := fc.PutStream(ctx, u.Path, newInput(ctx, in), h, func(n int) {
		r.Bytes += int64(n)
		bar.Add(n)
	})
	bar.Done()
	switch {
	case ctx.Err() != nil && err != nil:
		return context.Cause(ctx)
	case errors.Is(err, memsvc.ErrRefused), errors.Is(err, httpfile.ErrRefused),
		errors.Is(err, token.ErrMissing), errors.Is(err, token.ErrWrong):
		return err
	case err != nil && r.Bytes > 0:
		return shell.Hint(err, "nothing is left at the server; what was read can't be read again: run its producer again")
	case err != nil:
		return err
	}
	r.Size, r.Seconds = r.Bytes, time.Since(start).Seconds()
	r.SHA256, r.Verified = hex.EncodeToString(h.Sum(nil)), true
	return r.print(e)
}

// inputBytes is the length of a read of an input.
const inputBytes = 256 << 10

// An input reads ahead from a reader. A Read of the input returns when the context ends, even while
// the reader, such as a pipe, blocks.
type input struct {
	ctx  context.Context
	full chan chunk
	free chan []byte
	cur  chunk
	rest []byte // bytes of cur that Read has not returned yet
}

// A chunk is the result of a read.
type chunk struct {
	buf []byte
	n   int
	err error
}

func newInput(ctx context.Context, r io.Reader) *input {
	in := &input{ctx: ctx, full: make(chan chunk), free: make(chan []byte, 2)}
	for range cap(in.free) {
		in.free <- make([]byte, inputBytes)
	}
	go in.run(r)
	return in
}

func (in *input) run(r io.Reader) {
	for {
		select {
		case b := <-in.free:
			n, err := r.Read(b)
			select {
			case in.full <- chunk{b, n, err}:
			case <-in.ctx.Done():
				return
			}
			if err != nil {
				return
			}
		case <-in.ctx.Done():
			return
		}
	}
}

func (in *input) Read(p []byte) (int, error) {
	for len(in.rest) == 0 {
		if in.cur.err != nil {
			return 0, in.cur.err
		}
		if in.cur.buf != nil {
			in.free <- in.cur.buf
		}
		select {
		case in.cur = <-in.full:
			in.rest = in.cur.buf[:in.cur.n]
		case <-in.ctx.Done():
			in.cur.buf = nil
			return 0, context.Cause(in.ctx)
		}
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	return n, nil
}
