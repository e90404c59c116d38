package attend

import (
	"errors"
	"sync/atomic"

	"viaduct/internal/sock"
)

// A byteReader is a Receiver that counts bytes.
type byteReader struct {
	src   *sock.Socket
	bytes atomic.Int64
	ended atomic.Bool
}

func (r *byteReader) Receive(bool, bool) (got Got, more bool, err error) {
	var b [512]byte
	for {
		n, err := r.src.Read(b[:])
		switch {
		case errors.Is(err, sock.ErrWouldBlock):
			return got, false, nil
		case err != nil:
			return got, false, err
		case n == 0:
			return got, false, errors.New("the end")
		}
		r.bytes.Add(int64(n))
		got.Any, got.Bytes = true, got.Bytes+n
	}
}

func (r *byteReader) Left() bool    { return false }
func (r *byteReader) Deliver() bool { return false }
func (r *byteReader) Partial() bool { return false }
func (r *byteReader) Rest()         {}
func (r *byteReader) Ended(error)   { r.ended.Store(true) }
func (r *byteReader) Sent() uint32  { return 0 }
