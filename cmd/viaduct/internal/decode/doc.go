// Package decode reads captures of network traffic and tells what the protocols
// of this module said in them, and what was wrong with it: VI/TCP, MPA with DDP
// and RDMAP, SDP over it, the Port Mapper, and Fibre Channel with FC-VI in FCIP.
//
//	d := decode.New(decode.Options{}, func(m *decode.Message) { ... })
//	err := d.Read(file)
//
// Packets are taken in the order of the capture and nothing of it is kept but
// what the streams need: the memory does not grow with the length of a capture.
// What is missing (packets lost by the capture, packets cut short, connections
// that were there before it began) is told by messages of protocol "tcp", and
// decoding goes on behind it.
package decode
