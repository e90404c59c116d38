// Package exchange performs the exchanges that the specifications draw in their figures. The
// engines of this module are both ends. The line between them has a delay and can lose frames, and
// its traffic is recorded as a capture.
package exchange
