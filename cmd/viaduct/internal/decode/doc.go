// Package decode reads captures of network traffic. The package reports the messages of this
// module's protocols, and violations of the protocols: VI/TCP, MPA with DDP and RDMAP, SDP over
// RDMAP, the Port Mapper, Fibre Channel with FC-VI in FCIP, and RoCEv2 with connection management.
//
//	d := decode.New(decode.Options{}, func(m *decode.Message) { ... })
//	err := d.Read(file)
//
// Packets are decoded in the order of the capture, and only the state of streams is kept, so that
// memory does not grow with the length of a capture. Missing data is reported by messages of
// protocol "tcp": packets lost by the capture, truncated packets, and connections older than the
// capture. Decoding continues after the missing data.
package decode
