package mixed

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"math/rand/v2"
	"time"
)

// A Plan holds the settings shared by both ends of a connection.
type Plan struct {
	Seed     uint64        // determines the sent bytes
	For      time.Duration // how long each end sends
	Least    int           // number of operations that each end does in any case, even if that takes longer
	Rate     int           // largest rate of each end in bytes a second, without headers; 0 means no limit
	MaxBytes int           // maximum length of a message or write, at least 1
	Window   int           // messages in progress, at least 1; ignored for streams
	Idle     time.Duration // length of a pause of both ends in the middle of For
}

// A Tally holds the counts of an end.
type Tally struct {
	SentBytes, ReceivedBytes  uint64 // payload verified by the other end, and by this end
	Sends, Writes, Reads      uint64 // verified operations
	Posted, Completed, Failed uint64 // requests on both queues; Failed counts completions with an error
	Digest                    string // SHA-256 of the received bytes, in hex, if the connection ended in order
	Orderly                   bool   // both ends reported that they were done
	SharedMemory              bool   // the bytes went through shared memory, not TCP
}

// ErrBroken reports a broken promise that must hold on every network: no byte is wrong, and no
// completion is lost, repeated or out of order.
var ErrBroken = errors.New("broken promise")

func broken(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrBroken, fmt.Sprintf(format, a...))
}

// source returns the generator of the bytes sent by an end. The dialling and the listening end send
// different bytes.
func source(p Plan, dialled bool, use uint64) *rand.Rand {
	end := uint64(1)
	if dialled {
		end = 2
	}
	return rand.New(rand.NewPCG(p.Seed, end<<32|use))
}

// The uses of a source: each use has a separate random sequence.
const (
	useLengths uint64 = iota
	useExposed
	useStream
	usePayload // plus the number of the operation
)

// fill fills b with random bytes of r.
func fill(r *rand.Rand, b []byte) {
	for len(b) >= 8 {
		v := r.Uint64()
		b[0], b[1], b[2], b[3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
		b[4], b[5], b[6], b[7] = byte(v>>32), byte(v>>40), byte(v>>48), byte(v>>56)
		b = b[8:]
	}
	v := r.Uint64()
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
}

// length returns a random length from 1 to most. At least half of the lengths are at most 256.
func length(r *rand.Rand, most int) int {
	if r.IntN(2) == 0 {
		return 1 + r.IntN(min(most, 256))
	}
	return 1 + r.IntN(most)
}

// A pace limits the rate of an end to Plan.Rate.
type pace struct {
	rate  int
	begin time.Time
	sent  int
}

// delay returns how long to wait before sending n more bytes, and counts the n bytes as sent. The
// result is not positive if no wait is needed.
func (p *pace) delay(now time.Time, n int) time.Duration {
	if p.rate == 0 {
		return 0
	}
	due := p.begin.Add(time.Duration(float64(p.sent) / float64(p.rate) * float64(time.Second)))
	p.sent += n
	return due.Sub(now)
}

func digest(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

func newDigest() hash.Hash { return sha256.New() }
