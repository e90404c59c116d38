package vitcp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"viaduct/internal/perturb"
	"viaduct/internal/wire/vitcpwire"
)

// A Call describes a connection during set-up, for the functions deciding about the connection.
type Call struct {
	Caller, Callee netip.Addr // the IP addresses of the two sides
	Calling        []byte     // the caller's discriminator
	Called         []byte     // the discriminator that the caller asks for

	// Request is the security information of the Connect Request, as received on the wire. It is
	// set while the information of the Connect Accept is made or checked, and ties the answer to
	// the request. Request is nil while the request's own information is made or checked.
	Request []byte
}

// An Authenticator adds its own part to the security information sent by VIs. It checks and removes
// the peer's part. The methods may be called concurrently.
type Authenticator interface { // [VIT-2.2.1-3] [VIT-3.2-6]
	// Sign returns the security information to send. info is the part of the VI consumer and may be
	// empty; the authenticator adds its own part.
	Sign(c Call, info []byte) ([]byte, error)

	// Verify checks the received security information and returns the VI consumer's part, which may
	// share memory with the argument. An error refuses the connection.
	Verify(c Call, security []byte) (info []byte, err error)
}

// ErrSecurity is the error of a connection attempt whose security information from the peer was not
// accepted.
var ErrSecurity = errors.New("vitcp: security information not accepted")

// An HMAC puts the following part in front of the consumer's security information.
//
//	"VIHM" | version 1 | 3 bytes zero | time, ns since 1970 | nonce, 16 bytes | HMAC-SHA-256, 32 bytes
const (
	hmacMagic   = "VIHM\x01\x00\x00\x00"
	hmacTimeAt  = len(hmacMagic)
	hmacNonceAt = hmacTimeAt + 8
	hmacSumAt   = hmacNonceAt + 16
	hmacLen     = hmacSumAt + sha256.Size

	// hmacNonces is the maximum number of remembered nonces. At the maximum, further connections
	// are refused.
	hmacNonces = 1 << 16
)

// An HMAC is an Authenticator with a key both sides share. Each side proves possession of the key,
// by an HMAC-SHA-256 over both IP addresses, both discriminators, a nonce, the time and the
// consumer's own information. An HMAC prevents strangers from connecting. Later data is neither
// encrypted nor authenticated without TLS. The clocks of the two sides must agree within MaxSkew.
// Nonces are remembered for MaxSkew, so that an overheard request cannot be replayed to the same
// provider.
type HMAC struct {
	// Key is the shared secret; at least 16 bytes.
	Key []byte

	// MaxSkew is the maximum difference between the peer's clock and the local clock. 0 means a
	// minute.
	MaxSkew time.Duration

	// IgnoreAddresses excludes the IP addresses from the HMAC, for peers behind address
	// translation. Both sides must use the same setting.
	IgnoreAddresses bool

	// Now is the clock; nil means time.Now.
	Now func() time.Time

	mu   perturb.Mutex
	seen map[[16]byte]time.Time // guarded by mu: the time until which each nonce is remembered
}

var _ Authenticator = (*HMAC)(nil)

func (h *HMAC) now() time.Time {
	if h.Now != nil {
		return h.Now()
	}
	return time.Now()
}

func (h *HMAC) skew() time.Duration {
	if h.MaxSkew > 0 {
		return h.MaxSkew
	}
	return time.Minute
}

// Sign implements Authenticator.
func (h *HMAC) Sign(c Call, info []byte) ([]byte, error) {
	if len(h.Key) < 16 {
		return nil, fmt.Errorf("vitcp: HMAC key of %d bytes, need 16", len(h.Key))
	}
	b := make([]byte, hmacLen, hmacLen+len(info))
	copy(b, hmacMagic)
	binary.BigEndian.PutUint64(b[hmacTimeAt:], uint64(h.now().UnixNano()))
	rand.Read(b[hmacNonceAt:hmacSumAt]) // never fails
	copy(b[hmacSumAt:], h.sum(c, b[:hmacSumAt], info))
	return append(b, info...), nil
}

// Verify implements Authenticator. Its errors wrap ErrSecurity, except the error for a short key.
func (h *HMAC) Verify(c Call, b []byte) ([]byte, error) {
	if len(h.Key) < 16 {
		return nil, fmt.Errorf("vitcp: HMAC key of %d bytes, need 16", len(h.Key))
	}
	if len(b) < hmacLen || string(b[:hmacTimeAt]) != hmacMagic {
		return nil, fmt.Errorf("%w: no HMAC", ErrSecurity)
	}
	info := b[hmacLen:]
	if !hmac.Equal(b[hmacSumAt:hmacLen], h.sum(c, b[:hmacSumAt], info)) {
		return nil, fmt.Errorf("%w: wrong HMAC", ErrSecurity)
	}
	now := h.now()
	at := time.Unix(0, int64(binary.BigEndian.Uint64(b[hmacTimeAt:])))
	if d := now.Sub(at); d > h.skew() || d < -h.skew() {
		return nil, fmt.Errorf("%w: made at %v, which is more than %v from now", ErrSecurity, at.UTC(), h.skew())
	}
	if !h.fresh([16]byte(b[hmacNonceAt:]), now, at.Add(h.skew())) {
		return nil, fmt.Errorf("%w: used before", ErrSecurity)
	}
	return info, nil
}

// sum returns the HMAC over all fields. A field of variable length is preceded by the length, so
// that no two calls yield the same input.
func (h *HMAC) sum(c Call, head, info []byte) []byte {
	m := hmac.New(sha256.New, h.Key)
	field := func(b []byte) {
		m.Write(binary.BigEndian.AppendUint32(nil, uint32(len(b))))
		m.Write(b)
	}
	field(head)
	for _, a := range []netip.Addr{c.Caller, c.Callee} {
		if h.IgnoreAddresses {
			field(nil)
		} else {
			field(plainAddr(a).AsSlice())
		}
	}
	field(c.Calling)
	field(c.Called)
	request := sha256.Sum256(c.Request)
	if c.Request == nil {
		field(nil)
	} else {
		field(request[:])
	}
	field(info)
	return m.Sum(nil)
}

// fresh reports whether the nonce is new, and remembers the nonce until the given time. It returns
// false if hmacNonces valid nonces are remembered.
func (h *HMAC) fresh(nonce [16]byte, now, until time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old, ok := h.seen[nonce]; ok && !old.Before(now) {
		return false
	}
	if h.seen == nil {
		h.seen = make(map[[16]byte]time.Time)
	}
	if len(h.seen) >= hmacNonces {
		for n, t := range h.seen {
			if t.Before(now) {
				delete(h.seen, n)
			}
		}
		if len(h.seen) >= hmacNonces {
			return false
		}
	}
	h.seen[nonce] = until
	return true
}

// These constants describe the block in which a provider offers extensions. The block precedes all
// other security information. [V-17]
//
//	"VITX" | bits, 16 | length of the block, 16
const (
	extensionMagic = "VITX"
	extensionLen   = 8

	extensionDisconnect uint16 = 0x0001
)

// appendExtensions appends the block, if bits is not 0.
func appendExtensions(b []byte, bits uint16) []byte {
	if bits == 0 {
		return b
	}
	b = append(b, extensionMagic...)
	b = binary.BigEndian.AppendUint16(b, bits)
	return binary.BigEndian.AppendUint16(b, extensionLen)
}

// cutExtensions returns the bits the extension block at the front of b offers, and the bytes after
// the block. If b does not begin with a proper block, b belongs to the consumer and is returned
// unchanged.
func cutExtensions(b []byte) (bits uint16, rest []byte) {
	if len(b) < extensionLen || string(b[:4]) != extensionMagic {
		return 0, b
	}
	n := int(binary.BigEndian.Uint16(b[6:]))
	if n < extensionLen || n > len(b) {
		return 0, b
	}
	return binary.BigEndian.Uint16(b[4:]), b[n:]
}

// plain returns the bytes of a discriminator without padding.
func plain(d vitcpwire.Discriminator) []byte { return d.Append(nil) }
