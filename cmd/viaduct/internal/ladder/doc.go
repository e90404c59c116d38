// Package ladder draws the messages between two hosts as a message sequence diagram: a lifeline for
// each host, an arrow for each message, and the states and credits of both ends. A diagram is built
// from the messages of package decode. The forms of a drawing are text, SVG, and a single HTML file
// with zoom and details.
package ladder
