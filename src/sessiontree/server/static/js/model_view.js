// What the model sees at a place, and why: a dialog.
import { Modal } from "./dialogs.js";
import { Button, Chip, Component, Empty, Notice, html } from "./html.js";
import { formatCount } from "./format.js";

const MAX_MESSAGES = 500; // of a longer context, the last ones are shown

/** Return the content of a message as text. */
const readContent = ({ content, ...rest }) => {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return JSON.stringify(rest, null, 2);
  return content.map(describeBlock).join("\n\n");
};

const describeBlock = (block) => {
  if (block.type === "text") return block.text;
  if (block.type === "thinking") return `[thinking]\n${block.thinking ?? ""}`;
  if (block.type === "toolCall") return `[call of ${block.name}]\n${JSON.stringify(block.arguments, null, 2)}`;
  if (block.type === "image") return "[image]";
  return JSON.stringify(block, null, 2);
};

export class ModelView extends Component {
  state = { context: null, error: null };

  componentDidMount() {
    const { session, place } = this.props;
    session.api
      .get(`${session.base}/context`, { at: place ?? "root", explain: 1 })
      .then((context) => this.setState({ context }), (error) => this.setState({ error: error.message }));
  }

  render({ close }, { context, error }) {
    return html`<${Modal} title="Model's view" close=${close} kind="large">
      <${Notice} text=${error} kind="wrong" />
      ${!context && !error && html`<${Empty}>Loading…<//>`}
      ${context && this.renderContext(context)}
      <div class="row end"><${Button} label="Close" kind="primary" onClick=${close} /></div>
    <//>`;
  }

  renderContext({ messages, tokens, model, thinkingLevel, explanation = [] }) {
    const shown = messages.slice(-MAX_MESSAGES);
    const hidden = explanation.filter(({ inContext }) => inContext === false).length;
    const facts = [
      `${formatCount(messages.length)} messages`,
      `about ${formatCount(tokens)} tokens`,
      model && `${model.provider ?? ""}${model.provider ? ":" : ""}${model.modelId ?? model.model ?? ""}`,
      thinkingLevel && `thinking ${thinkingLevel}`,
      hidden && `${hidden} entries of the path are not sent`,
    ];
    return html`<p class="facts">${facts.filter(Boolean).map((fact) => html`<span>${fact}</span>`)}</p>
      ${messages.length > shown.length && html`<p class="note">Showing the last ${MAX_MESSAGES}.</p>`}
      ${messages.length === 0 && html`<${Empty}>The model sees no messages here.<//>`}
      ${shown.map((message) => html`<section class="seen"><h3><${Chip}>${message.role}<//></h3><pre class="block">${readContent(message)}</pre></section>`)}`;
  }
}
