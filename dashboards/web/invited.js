// Loaded before the first paint: with an invite link, the page waits for the invitation, so that
// nothing moves when it is shown (join.css). join.js checks the code.

document.documentElement.classList.toggle("is-invited", window.location.hash.includes("invite="));
