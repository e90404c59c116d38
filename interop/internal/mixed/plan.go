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

// A Plan is what the two ends of a connection agree on beforehand.
type Plan struct {
	Seed     uint64        // what is sent follows from it
	For      time.Duration // how long each end goes on sending
	Rate     int           // bytes a second that each end sends at most, without headers; 0 is no limit
	MaxBytes int           // of one message or write, at least 1
	Window   int           // messages in progress, at least 1; without meaning for streams
	Idle     time.Duration // both ends pause so long in the middle of For
}

// A Tally is what one end did.
type Tally struct {
	SentBytes, ReceivedBytes  uint64 // payload that was verified by the other end, and here
	Sends, Writes, Reads      uint64 // operations that were verified
	Posted, Completed, Failed uint64 // requests on both queues; Failed are those of Completed with an error
	Digest                    string // SHA-256 of what was received, in hex, if the end came in order
	Orderly                   bool   // both ends said that they were done
	SharedMemory              bool   // the bytes went through shared memory, not TCP
}

// ErrBroken is the promise that must hold on every network: no byte is wrong, no
// completion is lost, doubled or out of order.
var ErrBroken = errors.New("broken promise")

func broken(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrBroken, fmt.Sprintf(format, a...))
}

// source is the generator of what one end sends. The end that dialled and the
// end that listened send different bytes.
func source(p Plan, dialled bool, use uint64) *rand.Rand {
	end := uint64(1)
	if dialled {
		end = 2
	}
	return rand.New(rand.NewPCG(p.Seed, end<<32|use))
}

// The uses of a source.
const (
	useLengths uint64 = iota
	useExposed
	useStream
	usePayload // and the number of the operation
)

// fill makes b the bytes that r gives.
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

// length draws the length of a message: short ones are as frequent as long ones.
func length(r *rand.Rand, most int) int {
	if r.IntN(2) == 0 {
		return 1 + r.IntN(min(most, 256))
	}
	return 1 + r.IntN(most)
}

// A pace keeps an end from sending more than Plan.Rate.
type pace struct {
	rate  int
	begin time.Time
	sent  int
}

// delay is how long to wait before n bytes more.
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
