//go:build linux && (amd64 || arm64)

package rdma

import (
	stdcontext "context"
	"errors"
	"net"
	"time"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/wire/mpa"
	"viaduct/iwarp"
)

// requestTimeout is how long a peer may take to send a Request.
const requestTimeout = 10 * time.Second

// An mpaRequest is a connection whose Request was read and not answered yet.
type mpaRequest struct {
	nc   net.Conn
	read []byte
	p    mpa.Params
}

// readMPA reads a Request before the queue pair is known. It fails if the Request is invalid,
// longer than 1024 bytes or late, or if stop is closed. The caller must then close nc.
func readMPA(nc net.Conn, stop <-chan struct{}) (*mpaRequest, error) {
	m, err := mpa.NewResponder(mpa.ResponderConfig{CRC: true, IRD: maxReads, ORD: maxReads})
	if err != nil {
		return nil, err
	}
	nc.SetReadDeadline(time.Now().Add(requestTimeout))
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-stop:
			nc.Close()
		case <-over:
		}
	}()
	buf := make([]byte, 0, 1024)
	for {
		switch _, act := m.Receive(buf); act {
		case mpa.Ask:
			nc.SetReadDeadline(time.Time{})
			return &mpaRequest{nc, buf, m.Params()}, nil
		case mpa.Wait:
		default:
			return nil, m.Err()
		}
		if len(buf) == cap(buf) {
			return nil, errors.New("rdma: a Request without end")
		}
		n, err := nc.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil && n == 0 {
			return nil, err
		}
	}
}

// param returns the parameters of the connection request for the program. The peer's ORD becomes
// the IRD, and the peer's IRD the ORD.
func (r *mpaRequest) param() abi.ConnParam {
	return abi.ConnParam{Private: r.p.Private[:min(len(r.p.Private), abi.MaxPrivate)],
		IRD: uint8(min(r.p.PeerORD, 255)), ORD: uint8(min(r.p.PeerIRD, 255))}
}

func (r *mpaRequest) start(cfg *iwarp.Config) (*iwarp.Request, error) {
	ctx, cancel := stdcontext.WithTimeout(stdcontext.Background(), requestTimeout)
	defer cancel()
	return iwarp.ReadRequest(ctx, r.nc, r.read, cfg)
}

func (r *mpaRequest) accept(cfg *iwarp.Config, private []byte) (*iwarp.QueuePair, error) {
	req, err := r.start(cfg)
	if err != nil {
		return nil, err
	}
	return req.Accept(private)
}

func (r *mpaRequest) reject(private []byte) {
	if req, err := r.start(&iwarp.Config{Interop: iwarp.Interop{MaxPrivate: mpa.MaxPrivate}}); err == nil {
		req.Reject(private)
	}
}

func (r *mpaRequest) refuse() { r.reject(nil) }
