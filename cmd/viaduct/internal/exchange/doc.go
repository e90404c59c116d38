// Package exchange performs the exchanges of messages the figures of the specifications show.
// Engines of this module are at both ends. The line between them has a delay and can lose frames.
// Its traffic is recorded as a capture.
package exchange
