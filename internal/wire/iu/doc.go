// Package iu holds the wire format of FC-VI: the Device_Header of 16 and of 32
// bytes, the payloads of CONNECT_RQST and CONNECT_RESP1, and the rules that say
// which fields of a frame each of the twelve Information Units uses.
//
// The text of ISO/IEC 14165-331:2007 is not public. Names, sizes and the list
// of IUs are the standard's; most values are this project's assignment. Every
// assigned value stands in codepoints.go and nowhere else, behind the [Codec]
// interface, so that a second codec can be added when the text is at hand and
// nothing above it changes. The codec in use is [ProjectV1]; its version number
// travels in the set-up payloads, so that two ports that disagree refuse each
// other instead of misreading.
//
// Parse functions keep no reference to their input and allocate nothing but
// the discriminators of addresses.
package iu
