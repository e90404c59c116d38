// Package exchange carries out the exchanges that the specifications draw in their
// figures. The engines of this module are both ends; between them lies a line that
// takes its time and can lose frames, and what passes over it is recorded as
// a capture.
package exchange
