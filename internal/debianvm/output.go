package debianvm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// separator comes before the exit status, after the program's output.
const separator = '\036'

// copyOutput copies a job's output to w and gives the exit status that follows it. A program may print the separator,
// but for one that a number and the end of a line follow.
func copyOutput(w io.Writer, r io.Reader) (status int, err error) {
	var kept []byte // from the last separator on
	buf := make([]byte, 1<<14)
	for {
		n, rerr := r.Read(buf)
		kept = append(kept, buf[:n]...)
		at := bytes.LastIndexByte(kept, separator)
		pass := kept
		if at >= 0 {
			pass = kept[:at]
		}
		if _, err := w.Write(pass); err != nil {
			return 0, err
		}
		kept = kept[len(pass):]
		if bytes.HasSuffix(kept, []byte("\n")) || rerr != nil {
			status, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(string(kept), string(separator))))
			if err == nil && len(kept) > 0 {
				return status, nil
			}
		}
		if errors.Is(rerr, io.EOF) {
			return 0, fmt.Errorf("the guest ended and gave no exit status; it sent %q last", kept)
		}
		if rerr != nil {
			return 0, rerr
		}
	}
}
