package broker

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/agent/client"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// tokensDir is below the state directory.
const tokensDir = "tokens"

// newToken begins the name of a token that is being written.
const newToken = ".new-"

// tokenName is the file's name. The ifindex is in it, so that an attachment of the same name made anew has a token of its own.
func tokenName(a state.Attachment) string {
	sum := sha256.Sum256([]byte(a.Key.String() + "\x00" + strconv.Itoa(a.TAP.Index)))
	return hex.EncodeToString(sum[:16])
}

func tokenPath(dir string, a state.Attachment) string {
	return filepath.Join(dir, tokensDir, tokenName(a))
}

// checkToken compares the token with the attachment's file, which it makes where there is none.
func checkToken(dir string, a state.Attachment, info tap.Info, token string) *client.Error {
	want, err := ensureToken(dir, a, info)
	path := tokenPath(dir, a)
	switch {
	case err != nil:
		return refuse(client.Internal, "token of attachment %q: %v", a.Key, err)
	case token == "":
		return &client.Error{Code: client.TokenRequired, Message: fmt.Sprintf("attachment %q: want the token that %s holds, got none", a.Key, path), TokenFile: path}
	case subtle.ConstantTimeCompare([]byte(token), []byte(want)) != 1:
		return &client.Error{Code: client.WrongToken, Message: fmt.Sprintf("attachment %q: want the token that %s holds, got another", a.Key, path), TokenFile: path}
	}
	return nil
}

// ensureToken reads the attachment's token. A file that is not there is made: the TAP's owner's, with mode 0400, or of its group
// with 0440 where it has a group alone.
func ensureToken(dir string, a state.Attachment, info tap.Info) (string, error) {
	path := tokenPath(dir, a)
	token, err := readToken(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	if err := makeReachable(filepath.Dir(path)); err != nil {
		return "", err
	}
	if err := writeToken(path, info); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return readToken(path)
}

func readToken(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", fmt.Errorf("%s is empty; remove it", path)
	}
	return token, nil
}

// writeToken makes the file whole before it has its name. One that another request made meanwhile is fs.ErrExist.
func writeToken(path string, info tap.Info) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), newToken+"*")
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		if removeErr := os.Remove(f.Name()); removeErr != nil {
			err = errors.Join(err, removeErr)
		}
	}()
	uid, gid, mode := 0, -1, fs.FileMode(0o400)
	if info.Owner != nil {
		uid = *info.Owner
	} else if info.Group != nil {
		gid, mode = *info.Group, 0o440
	}
	if _, err := f.WriteString(rand.Text() + "\n"); err != nil {
		return err
	}
	if err := errors.Join(f.Chown(uid, gid), f.Chmod(mode)); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}

// makeReachable makes a folder that others may pass through and not list, and lets them pass through the one above it. What the
// state keeps in that one is 0600.
func makeReachable(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := letPass(d); err != nil {
			return err
		}
	}
	return nil
}

// letPass adds the right to pass through a folder to its mode.
func letPass(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if mode := st.Mode().Perm(); mode&0o011 != 0o011 {
		return os.Chmod(dir, mode|0o011)
	}
	return nil
}

// sweepTokens removes the tokens of attachments that are gone. The folder is listed before the state is read, so that what is
// made meanwhile stays.
func (s *Server) sweepTokens(dir string) error {
	folder := filepath.Join(dir, tokensDir)
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	err = s.store(dir).View(s.ctx, func(tx *state.Tx) error {
		clear(keep)
		return tx.ForEach("", func(a state.Attachment) error {
			keep[tokenName(a)] = true
			return nil
		})
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if keep[e.Name()] || strings.HasPrefix(e.Name(), newToken) && !old(e) {
			continue
		}
		if err := os.Remove(filepath.Join(folder, e.Name())); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// old tells whether a file is left by a tapird that was killed.
func old(e fs.DirEntry) bool {
	st, err := e.Info()
	return err == nil && time.Since(st.ModTime()) > time.Minute
}
