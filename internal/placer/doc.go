// Package placer puts the payload of framed messages into registered memory.
//
// It stands between frameio, which reads, and a protocol, which interprets frames by a [Wire]. The
// payload of a frame takes one of three paths:
//
//   - staged: the frame has arrived completely, and the payload is copied from the staging buffer;
//   - early: a long frame has arrived in part, and the rest is read directly into place;
//   - ahead: the frame has not arrived yet, but the Wire can predict the place of its payload, so
//     that a single read places the frame after the predecessor. A wrongly predicted frame goes
//     through the staging buffer like a frame without prediction.
//
// The steps are the same on each path: Next checks the frame, Target pins the memory of the
// payload, and End is called once all payload is in place.
package placer
