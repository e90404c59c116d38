// Package memsvc is the memory service of the command. A client asks by messages for a range of a
// file, gets an address and a handle, and moves the bytes itself by RDMA Read or RDMA Write. The
// package works over any transport. docs/memory-service.md describes the messages.
package memsvc

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/store"
)

// MaxMessage is the longest message of the service, in either direction.
const MaxMessage = 4096

// A request is a message of the client.
type request struct {
	Op     string     `json:"op"`
	Path   store.Text `json:"path"`
	Mode   string     `json:"mode,omitempty"`
	Offset int64      `json:"offset,omitempty"`
	Length int64      `json:"length,omitempty"` // of a file to store, -1 if it is not known; or of the bytes in a piece
	Pieces bool       `json:"pieces,omitempty"` // of an open: the file is stored by pieces
	SHA256 string     `json:"sha256,omitempty"`
	After  store.Text `json:"after,omitempty"` // of a listing: the name after which the listing continues
	Nonce  string     `json:"nonce,omitempty"` // the client's nonce for authentication
	Proof  string     `json:"proof,omitempty"` // proof that the client has the token
}

// A reply is a message of the server. The request determines which fields are present.
type reply struct {
	OK      bool           `json:"ok"`
	Error   string         `json:"error,omitempty"`
	Address string         `json:"address,omitempty"`
	Handle  *uint32        `json:"handle,omitempty"`
	Length  *int64         `json:"length,omitempty"`
	Pieces  []piece        `json:"pieces,omitempty"` // pieces of a file to store; each takes Length bytes
	Size    *int64         `json:"size,omitempty"`
	SHA256  string         `json:"sha256,omitempty"`
	Entries *[]store.Entry `json:"entries,omitempty"`
	More    bool           `json:"more,omitempty"`
	Nonce   string         `json:"nonce,omitempty"` // the server's nonce
	Proof   string         `json:"proof,omitempty"` // proof that the server has the token
}

// A piece is memory the server lends to a client for a part of the file to store. The client fills
// the pieces in turn. An extend request makes the server store the next piece, and the answer lends
// the stored piece again.
type piece struct {
	Address string `json:"address"`
	Handle  uint32 `json:"handle"`
}

func (p piece) remote() (at msg.Remote, err error) {
	at.Handle = p.Handle
	if at.Address, err = parseAddress(p.Address); err != nil {
		err = fmt.Errorf("the server's answer makes no sense: %w", err)
	}
	return at, err
}

// ErrRefused wraps the reason of a refused request. A request refused because of the token matches
// token.ErrMissing or token.ErrWrong, and not ErrRefused.
var ErrRefused = errors.New("the server refused")

// ErrNotServed wraps an answer impossible for a server of this package.
var ErrNotServed = errors.New("the answer is not that of a file server")

func hexAddress(a uint64) string { return "0x" + strconv.FormatUint(a, 16) }

func parseAddress(s string) (uint64, error) {
	if len(s) < 3 || s[:2] != "0x" {
		return 0, fmt.Errorf("address %q is not hex text", s)
	}
	return strconv.ParseUint(s[2:], 16, 64)
}

func parseSum(s string) (sum [32]byte, err error) { return parse32("sha256", s) }

// parse32 decodes 32 bytes from the field called name.
func parse32(name, s string) (v [32]byte, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(v) {
		return v, errors.New(name + " must be 64 hex digits")
	}
	return [32]byte(b), nil
}

// encode marshals v. The message always fits, except for listings, which the caller shortens.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // v is a struct of plain fields
	}
	return b
}
