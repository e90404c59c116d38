// Package placer puts the payload of framed messages into registered memory.
//
// It stands between frameio, which reads, and a protocol, whose frames it knows by a [Wire]. The
// payload of a frame takes one of three ways:
//
//   - staged: the frame has come whole and is copied from the staging buffer;
//   - early: a long frame has begun, and the rest of it is read straight into its memory;
//   - ahead: nothing of the frame has come yet, but the Wire can tell where its payload will belong,
//     so that is read there behind its predecessor. A frame that turns out to be another goes through
//     the staging buffer as if it had not been predicted.
//
// The steps are the same on each way: Next judges the frame, Target pins the memory of its bytes, and
// End is called when all of them are in place.
package placer
