// The page of a run that is training reloads itself when nobody has used it for a while.
{
  const seconds = Number(document.body.dataset.reload);
  let used = performance.now();
  for (const kind of ["pointerdown", "pointermove", "keydown", "wheel", "touchmove"])
    addEventListener(kind, () => { used = performance.now(); }, { passive: true });
  const timer = setInterval(() => {
    if (performance.now() - used < 1000 * seconds) return;
    clearInterval(timer);
    location.reload();
  }, 500 * seconds);
}
