// Package iu holds the wire format of FC-VI: the Device_Header of 16 and of 32 bytes, the payloads
// of CONNECT_RQST and CONNECT_RESP1, and the rules for the frame fields of the twelve Information
// Units.
//
// The text of ISO/IEC 14165-331:2007 is not public. Names, sizes and the list of IUs are the
// standard's; most values are the project's assignment. All assigned values are in codepoints.go.
// The [Codec] interface hides them, so that a second codec can be added without other changes once
// the text is available. The current codec is [ProjectV1]. Set-up payloads carry the codec's
// version number, so that two ports with different codecs refuse each other instead of misreading
// frames.
//
// Parse functions keep no reference to the input and allocate nothing but the discriminators of
// addresses.
package iu
