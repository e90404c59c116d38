// Package vitcp carries VI Architecture connections over TCP, as described in
// draft-dicecco-vitcp-00 (July 2000).
package vitcp
