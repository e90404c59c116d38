// Package ladder draws what passed between two hosts as a message sequence diagram:
// a lifeline for each, an arrow for each message, the states of both ends beside
// them, and their credit. A diagram is made of the messages of package decode and is
// drawn as text, as SVG, or as one HTML file with zoom and details.
package ladder
