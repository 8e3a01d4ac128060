//! Runs without end: the length of the queue, delays, time limits, streams and labels by client.
