// Package ladder draws the messages between two hosts as a message sequence diagram. It shows a
// lifeline for each host, an arrow for each message, and the states and credits of both ends. A
// diagram is built from the messages of package decode. It is drawn as text, as SVG, or as one HTML
// file with zoom and details.
package ladder
