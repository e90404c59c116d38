// Package exchange performs the exchanges of messages in the figures of the specifications. Engines
// of this module are at both ends. The line between the ends has a delay and can lose frames. The
// traffic of the line is recorded as a capture.
package exchange
